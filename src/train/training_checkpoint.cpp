#include "train/training_checkpoint.h"

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/thread_pool.h"
#include "io/atomic_directory.h"
#include "io/safetensors.h"
#include "models/parameter_set.h"

namespace phalanx {
namespace {

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

void read_tensors(const std::string& folder, const std::string& name, const NamedTensors& tensors) {
  const CheckpointManifest manifest(folder);
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
    manifest.check(name, key, hex_digest(xxh64(tensor.const_data_ptr(), tensor.nbytes())));
  });
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
  AtomicDirectory folder(checkpoints + "/" + checkpoint_name(step), ExistingFolder::kReplace);
  ThreadPool pool;
  const std::string text = progress.dump(2);
  Json manifest = Json::object();
  manifest.set("format", kCheckpointFormat);
  manifest.set("progress.json", hex_digest(xxh64(text.data(), text.size())));
  manifest.set("model.safetensors", write_tensors(folder / "model.safetensors", tensors.model, pool));
  manifest.set("optimizer.safetensors",
               write_tensors(folder / "optimizer.safetensors", tensors.optimizer, pool));
  write_file_atomic(folder / "progress.json", text);
  write_file_atomic(folder / "manifest.json", manifest.dump(2));
  folder.commit();
  return folder.target();
}

void load_checkpoint_weights(const std::string& folder, const NamedTensors& model) {
  read_tensors(folder, "model.safetensors", model);
}

void load_checkpoint_tensors(const std::string& folder, const CheckpointTensors& tensors) {
  load_checkpoint_weights(folder, tensors.model);
  read_tensors(folder, "optimizer.safetensors", tensors.optimizer);
}

}  // namespace phalanx
