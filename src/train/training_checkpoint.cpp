#include "train/training_checkpoint.h"

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/thread_pool.h"
#include "io/atomic_directory.h"
#include "io/safetensors.h"
#include "models/parameter_set.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

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

// "exp_avg.model.norm.weight" -> "model.norm.weight"; the model's own tensors have no such prefix.
std::int64_t first_row_of(const std::string& key, const FirstRows& first_rows) {
  auto found = first_rows.find(key);
  if (found == first_rows.end()) {
    found = first_rows.find(key.substr(key.find('.') + 1));
  }
  return found == first_rows.end() ? -1 : found->second;
}

// Reads `tensor`, which begins `skipped` bytes into the stored one, and returns the checksum of all of that: what others hold is read
// too, and looked at alone.
std::string read_part(const SafetensorsFile& file, const TensorInfo& stored, std::uint64_t bytes,
                      std::uint64_t skipped, const at::Tensor& tensor) {
  constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;
  std::vector<std::byte> piece(std::min(bytes, kPiece));
  auto* memory = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const std::uint64_t end = skipped + tensor.nbytes();
  Xxh64 hash;
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const std::uint64_t count = std::min(kPiece, bytes - at);
    file.read(stored, at, count, piece.data());
    hash.update(piece.data(), count);
    const std::uint64_t from = std::max(at, skipped), to = std::min(at + count, end);
    if (from < to) {
      std::memcpy(memory + (from - skipped), piece.data() + (from - at), to - from);
    }
  }
  return hex_digest(hash.digest());
}

void read_tensors(const std::string& folder, const std::string& name, const NamedTensors& tensors,
                  const FirstRows& first_rows) {
  const CheckpointManifest manifest(folder);
  const SafetensorsFile file(folder + "/" + name);
  PHALANX_CHECK(file.tensors().size() == tensors.size(), IoError, file.path(), ": holds ",
                file.tensors().size(), " tensors, this run has ", tensors.size(),
                "; resume with the model and precision it was saved with");
  ThreadPool pool;
  pool.parallel_for(tensors.size(), [&](std::size_t i) {
    const auto& [key, tensor] = tensors[i];
    const TensorInfo& stored = file.at(key);
    TensorInfo wanted = info_of(key, tensor);
    const std::int64_t first_row = first_row_of(key, first_rows);
    if (first_row >= 0 && !stored.shape.empty() && !wanted.shape.empty()) {
      PHALANX_CHECK(first_row + wanted.shape[0] <= stored.shape[0], IoError, file.path(), ": tensor ", key,
                    " has ", stored.shape[0], " rows, this rank needs those up to ",
                    first_row + wanted.shape[0], "; resume with the model it was saved with");
      wanted.shape[0] = stored.shape[0];
    }
    PHALANX_CHECK(stored.dtype == wanted.dtype && stored.shape == wanted.shape, IoError, file.path(),
                  ": tensor ", key, " is ", dtype_name(stored.dtype), " ", shape_text(stored.shape),
                  ", this run needs ", dtype_name(wanted.dtype), " ", shape_text(wanted.shape),
                  "; resume with the model and precision it was saved with");
    if (first_row >= 0) {
      const std::uint64_t row = tensor.nbytes() / static_cast<std::uint64_t>(tensor.size(0));
      const auto rows = static_cast<std::uint64_t>(stored.shape[0]);
      manifest.check(
          name, key,
          read_part(file, stored, rows * row, static_cast<std::uint64_t>(first_row) * row, tensor));
      return;
    }
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

void load_checkpoint_weights(const std::string& folder, const NamedTensors& model,
                             const FirstRows& first_rows) {
  read_tensors(folder, "model.safetensors", model, first_rows);
}

void load_checkpoint_tensors(const std::string& folder, const CheckpointTensors& tensors,
                             const FirstRows& first_rows) {
  load_checkpoint_weights(folder, tensors.model, first_rows);
  read_tensors(folder, "optimizer.safetensors", tensors.optimizer, first_rows);
}

}  // namespace phalanx
