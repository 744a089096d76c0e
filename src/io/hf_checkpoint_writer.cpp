#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "io/hf_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

// Fills one shard after another in order; a tensor beyond the limit gets a shard of its own, without closing the current one.
std::vector<std::vector<TensorInfo>> split_into_shards(const std::vector<TensorInfo>& tensors,
                                                       std::uint64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> shards;
  std::vector<TensorInfo> current;
  std::uint64_t current_bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (bytes > max_bytes) {
      shards.push_back({tensor});
      continue;
    }
    if (current_bytes + bytes > max_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(tensor);
    current_bytes += bytes;
  }
  if (!current.empty()) {
    shards.push_back(std::move(current));
  }
  return shards;
}

std::int64_t num_elements(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) {
    count *= size;
  }
  return count;
}

// Names of files, and of families of files by their suffix, that travel with the weights.
bool is_side_file(const std::string& name) {
  constexpr std::array<std::string_view, 16> kNames = {"generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "special_tokens_map.json",
                                                       "added_tokens.json",
                                                       "vocab.json",
                                                       "vocab.txt",
                                                       "merges.txt",
                                                       "chat_template.jinja",
                                                       "chat_template.json",
                                                       "preprocessor_config.json",
                                                       "processor_config.json",
                                                       "LICENSE",
                                                       "LICENSE.txt",
                                                       "LICENSE.md",
                                                       "NOTICE"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.ends_with(".tiktoken") ||
         (name.ends_with(".model") && !name.starts_with("."));
}

void copy_file(const std::string& from_folder, const fs::path& from, const fs::path& to) {
  PHALANX_CHECK(stays_inside(from_folder, from.string()), IoError, from.string(),
                ": is a link that leaves the folder; put the file itself there");
  write_file_atomic(to.string(), read_text(from.string()));
}

}  // namespace

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) {
    return "model.safetensors";
  }
  std::array<char, 80> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

HfCheckpointWriter::HfCheckpointWriter(std::string folder, const std::vector<TensorInfo>& tensors,
                                       std::uint64_t max_shard_bytes)
    : folder_(std::move(folder)) {
  PHALANX_CHECK(!tensors.empty(), IoError, folder_, ": a checkpoint without tensors cannot be written");
  const std::vector<std::vector<TensorInfo>> shards = split_into_shards(tensors, max_shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string path = folder_ + "/" + shard_name(i, shards.size());
    writers_.push_back(
        std::make_unique<SafetensorsWriter>(path, shards[i], SafetensorsMetadata{{"format", "pt"}}));
    for (const TensorInfo& info : writers_.back()->tensors()) {
      PHALANX_CHECK(targets_.emplace(info.name, Target{writers_.back().get(), &info}).second, IoError, path,
                    ": tensor ", in_quotes(info.name), " is to be written twice");
    }
  }
}

void HfCheckpointWriter::write(std::string_view name, std::uint64_t offset, std::size_t bytes,
                               const void* source) {
  const auto found = targets_.find(name);
  PHALANX_CHECK(found != targets_.end(), Error, folder_, ": tensor ", in_quotes(name), " was not declared");
  found->second.writer->write(*found->second.info, offset, bytes, source);
}

void HfCheckpointWriter::commit() {
  for (const auto& writer : writers_) {
    writer->commit();
  }
  if (writers_.size() > 1) {
    write_file_atomic(folder_ + "/model.safetensors.index.json", index_text());
  }
}

std::string HfCheckpointWriter::index_text() const {
  std::uint64_t bytes = 0;
  std::int64_t elements = 0;
  std::map<std::string_view, std::string> shard_of;  // the index lists names in order
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    for (const TensorInfo& info : writers_[i]->tensors()) {
      bytes += info.bytes();
      elements += num_elements(info);
      shard_of.emplace(info.name, shard_name(i, writers_.size()));
    }
  }
  Json::Object weight_map;
  for (auto& [name, shard] : shard_of) {
    weight_map.emplace_back(std::string(name), std::move(shard));
  }
  Json metadata;
  metadata.set("total_parameters", elements);
  metadata.set("total_size", bytes);
  Json index;
  index.set("metadata", std::move(metadata));
  index.set("weight_map", std::move(weight_map));
  return index.dump(2) + "\n";
}

void copy_side_files(const std::string& from_folder, const std::string& to_folder) {
  for (const auto& item : fs::directory_iterator(from_folder)) {
    const std::string name = item.path().filename().string();
    if (item.is_regular_file() && is_side_file(name)) {
      copy_file(from_folder, item.path(), fs::path(to_folder) / name);
    } else if (item.is_directory() && name == "additional_chat_templates") {
      fs::create_directories(fs::path(to_folder) / name);
      for (const auto& chat_template : fs::directory_iterator(item.path())) {
        copy_file(from_folder, chat_template.path(),
                  fs::path(to_folder) / name / chat_template.path().filename());
      }
    }
  }
}

}  // namespace phalanx
