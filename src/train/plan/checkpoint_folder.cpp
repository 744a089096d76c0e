#include "train/plan/checkpoint_folder.h"

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/thread_pool.h"
#include "io/safetensors.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepPrefix = "step-";
constexpr const char* kTensorFiles[] = {"model.safetensors", "optimizer.safetensors"};

void compare(const std::string& what, const std::string& found, const Json& saved) {
  PHALANX_CHECK(saved == Json(found), IoError, what, " is damaged: checksum ", found, ", saved as ",
                saved.dump());
}

// The step of "…/step-00000012", or nothing for another name.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  const char* begin = name.data() + std::char_traits<char>::length(kStepPrefix);
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end ? std::optional(step) : std::nullopt;
}

void verify_tensors(const std::string& folder, const std::string& name, const CheckpointManifest& manifest) {
  const SafetensorsFile file(folder + "/" + name);
  const std::vector<std::string> tensors = manifest.tensors(name);
  ThreadPool pool;
  pool.parallel_for(tensors.size(), [&](std::size_t i) {
    const TensorInfo& info = file.at(tensors[i]);
    const auto bytes = std::make_unique_for_overwrite<char[]>(info.bytes());
    file.read(info, 0, info.bytes(), bytes.get());
    manifest.check(name, tensors[i], hex_digest(xxh64(bytes.get(), info.bytes())));
  });
}

}  // namespace

CheckpointManifest::CheckpointManifest(const std::string& folder)
    : folder_(folder), json_(Json::parse_file(folder + "/manifest.json")) {
  const Json* format = json_.find("format");
  PHALANX_CHECK(format != nullptr && *format == Json(kCheckpointFormat), IoError, folder,
                "/manifest.json: format is ", format == nullptr ? "missing" : format->dump(),
                ", this version reads ", kCheckpointFormat,
                "; the checkpoint is damaged or of another version");
}

const Json& CheckpointManifest::entry(const Json& json, const std::string& name) const {
  const Json* value = json.is_object() ? json.find(name) : nullptr;
  PHALANX_CHECK(value != nullptr, IoError, folder_, "/manifest.json: holds no checksum of ", name,
                "; the checkpoint is damaged");
  return *value;
}

void CheckpointManifest::check(const std::string& file, const std::string& found) const {
  compare(concat(folder_, "/", file), found, entry(json_, file));
}

void CheckpointManifest::check(const std::string& file, const std::string& tensor,
                               const std::string& found) const {
  compare(concat(folder_, "/", file, ": tensor ", tensor), found, entry(entry(json_, file), tensor));
}

std::vector<std::string> CheckpointManifest::tensors(const std::string& file) const {
  std::vector<std::string> names;
  const Json& checksums = entry(json_, file);
  PHALANX_CHECK(checksums.is_object(), IoError, folder_, "/manifest.json: ", file, " is ", checksums.kind(),
                ", expected checksums by name; the checkpoint is damaged");
  for (const auto& [name, checksum] : checksums.as_object()) {
    names.push_back(name);
  }
  return names;
}

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return kStepPrefix + digits;
}

std::vector<std::string> list_checkpoints(const std::string& checkpoints) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints, error)) {
    if (const auto step = step_of(entry.path()); step.has_value() && entry.is_directory()) {
      found.emplace_back(*step, entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) {
    paths.push_back(std::move(path));
  }
  return paths;
}

std::string find_checkpoint(const std::string& source) {
  const std::vector<std::string> checkpoints = list_checkpoints(source + "/checkpoints");
  if (!checkpoints.empty()) {
    return checkpoints.back();
  }
  PHALANX_CHECK(fs::exists(source + "/progress.json"), IoError, source,
                ": is neither a run with a checkpoint (no ", source,
                "/checkpoints/step-*) nor a checkpoint (no progress.json); name the --output of a finetune "
                "that has saved, or one of its checkpoints");
  return source;
}

Json read_progress(const std::string& folder) {
  const std::string path = folder + "/progress.json";
  const std::string text = read_text(path);
  CheckpointManifest(folder).check("progress.json", hex_digest(xxh64(text.data(), text.size())));
  return Json::parse(text, path);
}

void verify_checkpoint(const std::string& folder) {
  read_progress(folder);
  const CheckpointManifest manifest(folder);
  for (const char* file : kTensorFiles) {
    verify_tensors(folder, file, manifest);
  }
}

std::optional<std::string> newest_intact_before(const std::string& checkpoints, const std::string& damaged) {
  const std::vector<std::string> all = list_checkpoints(checkpoints);
  for (auto path = std::make_reverse_iterator(std::find(all.begin(), all.end(), damaged)); path != all.rend();
       ++path) {
    try {
      verify_checkpoint(*path);
      return *path;
    } catch (const Error&) {  // damaged as well
    }
  }
  return std::nullopt;
}

void prune_checkpoints(const std::string& checkpoints, std::int64_t keep) {
  const std::vector<std::string> paths = list_checkpoints(checkpoints);
  const auto surplus =
      std::max<std::int64_t>(0, static_cast<std::int64_t>(paths.size()) - std::max<std::int64_t>(1, keep));
  std::error_code error;  // what cannot be removed is tried again next time
  for (std::int64_t i = 0; i < surplus; ++i) {
    fs::remove_all(paths[static_cast<std::size_t>(i)], error);
  }
  for (const auto& entry : fs::directory_iterator(checkpoints, error)) {
    if (entry.path().filename().string().starts_with(std::string(".") + kStepPrefix)) {
      fs::remove_all(entry.path(), error);
    }
  }
}

}  // namespace phalanx
