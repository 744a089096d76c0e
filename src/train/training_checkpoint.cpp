#include "train/training_checkpoint.h"

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/thread_pool.h"
#include "io/atomic_directory.h"
#include "io/safetensors.h"
#include "models/parameter_set.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace phalanx {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr const char* kStepPrefix = "step-";

TensorInfo info_of(const std::string& name, const at::Tensor& tensor) {
  TensorInfo info;
  info.name = name;
  info.dtype = to_dtype(tensor.scalar_type());
  info.shape = tensor.sizes().vec();
  return info;
}

// Returns the checksums by name, taken from memory before the bytes leave it.
Json write_tensors(const std::string& path, const NamedTensors& tensors, ThreadPool& pool) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back(info_of(name, tensor));
  }
  SafetensorsWriter writer(path, std::move(infos));
  std::vector<std::string> digests(tensors.size());
  pool.parallel_for(tensors.size(), [&](std::size_t i) {
    const auto& [name, tensor] = tensors[i];
    PHALANX_CHECK(tensor.is_contiguous() && tensor.is_cpu(), Error, name,
                  ": a checkpointed tensor must be contiguous on the CPU");
    digests[i] = hex_digest(xxh64(tensor.const_data_ptr(), tensor.nbytes()));
    writer.write(writer.at(name), 0, tensor.nbytes(), tensor.const_data_ptr());
  });
  writer.commit();
  Json checksums = Json::object();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    checksums.set(tensors[i].first, digests[i]);
  }
  return checksums;
}

void check_digest(const std::string& what, const std::string& found, const std::string& saved) {
  PHALANX_CHECK(found == saved, IoError, what, " is damaged: checksum ", found, ", saved as ", saved,
                "; resume from an older checkpoint with checkpoint.resume=PATH");
}

// manifest.json as read: whatever it lacks is an error that names it.
class Manifest {
 public:
  explicit Manifest(const std::string& folder)
      : path_(folder + "/manifest.json"), json_(Json::parse_file(path_)) {
    const Json* format = json_.find("format");
    PHALANX_CHECK(format != nullptr && *format == Json(kFormat), IoError, path_, ": format is ",
                  format == nullptr ? "missing" : format->dump(), ", this version reads ", kFormat,
                  "; the checkpoint is damaged or of another version");
  }

  // The checksum of a file, or of a tensor of a file.
  std::string checksum(const std::string& file) const { return text(json_.find(file), file); }
  std::string checksum(const std::string& file, const std::string& tensor) const {
    const Json* tensors = json_.find(file);
    return text(tensors == nullptr ? nullptr : tensors->find(tensor), tensor);
  }

 private:
  std::string text(const Json* value, const std::string& what) const {
    PHALANX_CHECK(value != nullptr && value->is_string(), IoError, path_, ": holds no checksum of ", what,
                  "; the checkpoint is damaged, resume from an older one with checkpoint.resume=PATH");
    return value->as_string();
  }

  std::string path_;
  Json json_;
};

void read_tensors(const std::string& folder, const std::string& name, const NamedTensors& tensors) {
  const Manifest manifest(folder);
  const SafetensorsFile file(folder + "/" + name);
  PHALANX_CHECK(file.tensors().size() == tensors.size(), IoError, file.path(), ": holds ",
                file.tensors().size(), " tensors, this run has ", tensors.size(),
                "; resume with the model and precision it was saved with");
  ThreadPool pool;
  pool.parallel_for(tensors.size(), [&](std::size_t i) {
    const auto& [key, tensor] = tensors[i];
    const TensorInfo& stored = file.at(key);
    const TensorInfo wanted = info_of(key, tensor);
    PHALANX_CHECK(stored.dtype == wanted.dtype && stored.shape == wanted.shape, IoError, file.path(),
                  ": tensor ", key, " is ", dtype_name(stored.dtype), " ", shape_text(stored.shape),
                  ", this run needs ", dtype_name(wanted.dtype), " ", shape_text(wanted.shape),
                  "; resume with the model and precision it was saved with");
    file.read(stored, 0, tensor.nbytes(), tensor.mutable_data_ptr());
    check_digest(file.path() + ": tensor " + key, hex_digest(xxh64(tensor.const_data_ptr(), tensor.nbytes())),
                 manifest.checksum(name, key));
  });
}

// The step of "…/step-00000012", or nothing for another name.
std::optional<std::int64_t> step_of(const std::filesystem::path& path) {
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

std::string folder_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return kStepPrefix + digits;
}

}  // namespace

CheckpointTensors on_host(const CheckpointTensors& tensors) {
  CheckpointTensors host = tensors;
  for (NamedTensors* list : {&host.model, &host.optimizer}) {
    for (auto& [_, tensor] : *list) {
      tensor = tensor.cpu();
    }
  }
  return host;
}

void copy_tensors(const CheckpointTensors& from, const CheckpointTensors& to) {
  const auto copy = [](const NamedTensors& source, const NamedTensors& target) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (!target[i].second.is_same(source[i].second)) {
        target[i].second.copy_(source[i].second);
      }
    }
  };
  copy(from.model, to.model);
  copy(from.optimizer, to.optimizer);
}

std::string save_training_checkpoint(const std::string& checkpoints, std::int64_t step, const Json& progress,
                                     const CheckpointTensors& tensors) {
  AtomicDirectory folder(checkpoints + "/" + folder_name(step), ExistingFolder::kReplace);
  ThreadPool pool;
  const std::string text = progress.dump(2);
  Json manifest = Json::object();
  manifest.set("format", kFormat);
  manifest.set("progress.json", hex_digest(xxh64(text.data(), text.size())));
  manifest.set("model.safetensors", write_tensors(folder / "model.safetensors", tensors.model, pool));
  manifest.set("optimizer.safetensors",
               write_tensors(folder / "optimizer.safetensors", tensors.optimizer, pool));
  write_file_atomic(folder / "progress.json", text);
  write_file_atomic(folder / "manifest.json", manifest.dump(2));
  folder.commit();
  return folder.target();
}

Json read_progress(const std::string& folder) {
  const std::string path = folder + "/progress.json";
  const std::string text = read_text(path);
  check_digest(path, hex_digest(xxh64(text.data(), text.size())), Manifest(folder).checksum("progress.json"));
  return Json::parse(text, path);
}

void load_checkpoint_weights(const std::string& folder, const NamedTensors& model) {
  read_tensors(folder, "model.safetensors", model);
}

Json load_training_checkpoint(const std::string& folder, const CheckpointTensors& tensors) {
  Json progress = read_progress(folder);
  load_checkpoint_weights(folder, tensors.model);
  read_tensors(folder, "optimizer.safetensors", tensors.optimizer);
  return progress;
}

std::vector<std::string> list_checkpoints(const std::string& checkpoints) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, error)) {
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

void prune_checkpoints(const std::string& checkpoints, std::int64_t keep) {
  std::vector<std::string> paths = list_checkpoints(checkpoints);
  const auto surplus =
      std::max<std::int64_t>(0, static_cast<std::int64_t>(paths.size()) - std::max<std::int64_t>(1, keep));
  std::error_code error;  // what cannot be removed is tried again next time
  for (std::int64_t i = 0; i < surplus; ++i) {
    std::filesystem::remove_all(paths[static_cast<std::size_t>(i)], error);
  }
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, error)) {
    if (entry.path().filename().string().starts_with(std::string(".") + kStepPrefix)) {
      std::filesystem::remove_all(entry.path(), error);
    }
  }
}

}  // namespace phalanx
