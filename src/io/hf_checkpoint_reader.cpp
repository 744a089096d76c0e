#include "core/advice.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"
#include "io/hf_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr const char* kFetchAgain = "; fetch or write the checkpoint again";

// One shard after another as the index tells them, each with the tensors it must hold.
struct Index {
  std::string path;
  std::vector<std::string> shards;                               // sorted, each once
  std::unordered_map<std::string_view, std::string_view> owner;  // tensor -> shard, into `document`
  Json document;
};

void check_shard_name(const std::string& index, const std::string& tensor, const std::string& shard) {
  const bool plain = shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos &&
                     shard.ends_with(kSuffix) && shard.front() != '.';
  PHALANX_CHECK(plain, IoError, index, ": places tensor ", in_quotes(tensor), " in ", in_quotes(shard),
                ", expected the plain name of a .safetensors file in the same folder");
}

Index read_index(const std::string& path) {
  Index index{path, {}, {}, with_advice("fetch or write the checkpoint again", [&] {
                return Json::parse_file(path);
              })};
  const Json* weight_map = index.document.find("weight_map");
  PHALANX_CHECK(weight_map != nullptr && weight_map->is_object(), IoError, path,
                ": has no object 'weight_map'", kFetchAgain);
  for (const auto& [tensor, shard] : weight_map->as_object()) {
    PHALANX_CHECK(shard.is_string(), IoError, path, ": 'weight_map' gives tensor ", in_quotes(tensor),
                  " a value of kind ", shard.kind(), ", expected the name of a file");
    check_shard_name(path, tensor, shard.as_string());
    index.owner.emplace(tensor, shard.as_string());
    index.shards.push_back(shard.as_string());
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  return index;
}

void warn_of_wrong_total(const Index& index, std::uint64_t found) {
  const Json* metadata = index.document.find("metadata");
  const Json* total = metadata ? metadata->find("total_size") : nullptr;
  if (total != nullptr && total->is_number() && total->as_number() != static_cast<double>(found)) {
    log_warning(index.path, ": total_size is ", total->dump(), ", the tensors have ", found,
                " bytes; going by the tensors");
  }
}

// What a folder holds instead of weights that can be read.
[[noreturn]] void refuse_without_weights(const std::string& folder) {
  std::string pickled;
  std::string stray;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const std::string name = item.path().filename().string();
    const std::string suffix = item.path().extension().string();
    if (suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".ckpt") {
      pickled = name;
    } else if (suffix == kSuffix) {
      stray = name;
    }
  }
  PHALANX_CHECK(!error, IoError, folder, ": the folder cannot be listed: ", error.message());
  PHALANX_CHECK(stray.empty(), IoError, folder, ": has neither ", kSingleFile, " nor ", kIndexFile,
                ", though it has ", in_quotes(stray), "; give a folder of full weights, complete");
  PHALANX_CHECK(pickled.empty(), IoError, folder, ": has pickled weights only (", in_quotes(pickled),
                "), which can run code and are never opened; convert them: load them with transformers' "
                "from_pretrained and "
                "write them with save_pretrained, which gives safetensors");
  fail<IoError>(folder, ": holds no weights, expected ", kSingleFile, " or ", kIndexFile,
                "; give the folder of a model");
}

}  // namespace

bool stays_inside(const std::string& folder, const std::string& path) {
  fs::path root = fs::canonical(folder);
  for (fs::path ancestor = root; ancestor.has_relative_path(); ancestor = ancestor.parent_path()) {
    if (ancestor.filename().string().starts_with("models--")) {
      root = ancestor;  // a snapshot of the hub cache links to the blobs beside it
      break;
    }
  }
  const fs::path real = fs::weakly_canonical(path);
  return std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
}

HfCheckpoint::HfCheckpoint(std::string folder) : folder_(std::move(folder)) {
  const fs::path root(folder_);
  std::error_code error;
  PHALANX_CHECK(fs::is_directory(root, error), IoError, folder_,
                ": is no folder; give the folder of a model");
  if (fs::exists(root / kSingleFile, error)) {
    add_file(kSingleFile);
  } else if (fs::exists(root / kIndexFile, error)) {
    open_sharded((root / kIndexFile).string());
  } else {
    refuse_without_weights(folder_);
  }
}

void HfCheckpoint::add_file(const std::string& name) {
  const std::string path = (fs::path(folder_) / name).string();
  PHALANX_CHECK(stays_inside(folder_, path), IoError, path,
                ": is a link that leaves the folder; put the file itself there");
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const TensorInfo& info : file.tensors()) {
    const auto [known, is_new] = by_name_.emplace(info.name, tensors_.size());
    PHALANX_CHECK(is_new, IoError, path, ": holds tensor ", in_quotes(info.name), ", which ",
                  tensors_[known->second].file->path(), " holds as well", kFetchAgain);
    tensors_.push_back({&file, &info});
  }
}

void HfCheckpoint::open_sharded(const std::string& index_path) {
  const Index index = read_index(index_path);
  for (const std::string& shard : index.shards) {
    const fs::path path = fs::path(folder_) / shard;
    std::error_code error;
    PHALANX_CHECK(fs::exists(path, error), IoError, path.string(), ": is missing, though ", index.path,
                  " names it", kFetchAgain);
    add_file(shard);
  }
  for (const StoredTensor& tensor : tensors_) {
    const auto owner = index.owner.find(tensor.info->name);
    PHALANX_CHECK(owner != index.owner.end(), IoError, tensor.file->path(), ": holds tensor ",
                  in_quotes(tensor.info->name), ", which ", index.path, " does not list", kFetchAgain);
    PHALANX_CHECK(fs::path(tensor.file->path()).filename() == owner->second, IoError, tensor.file->path(),
                  ": holds tensor ", in_quotes(tensor.info->name), ", which ", index.path, " places in ",
                  in_quotes(owner->second), kFetchAgain);
  }
  for (const auto& [tensor, shard] : index.owner) {
    PHALANX_CHECK(find(tensor) != nullptr, IoError, (fs::path(folder_) / shard).string(), ": lacks tensor ",
                  in_quotes(tensor), ", which ", index.path, " places there", kFetchAgain);
  }
  warn_of_wrong_total(index, total_bytes());
}

const StoredTensor* HfCheckpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t HfCheckpoint::total_bytes() const {
  std::uint64_t sum = 0;
  for (const StoredTensor& tensor : tensors_) {
    sum += tensor.info->bytes();
  }
  return sum;
}

}  // namespace phalanx
