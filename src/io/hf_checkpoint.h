// The weights of a Hugging Face model folder: model.safetensors, or model.safetensors.index.json and its shards.
#pragma once
#include "io/safetensors.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace phalanx {

struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;
};

class HfCheckpoint {
 public:
  // Opens every file and reads every header; no tensor yet. Throws IoError when a shard is missing, lies outside the folder (only
  // the hub cache's own links may leave it), holds a tensor the index does not give it, or lacks one; when there are only
  // pickled weights, or none. A wrong total_size is a warning.
  explicit HfCheckpoint(std::string folder);

  const std::string& folder() const { return folder_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::vector<StoredTensor>& tensors() const {
    return tensors_;
  }                                                       // file by file, in the order of their bytes
  const StoredTensor* find(std::string_view name) const;  // nullptr when absent
  std::uint64_t total_bytes() const;

 private:
  void open_sharded(const std::string& index_path);
  void add_file(const std::string& name);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;

// Writes the weights of a model folder as Transformers does: one file, or shards of at most `max_shard_bytes` (a larger tensor has
// one of its own) filled in the order of `tensors`, with their index. The files appear with commit().
class HfCheckpointWriter {
 public:
  HfCheckpointWriter(std::string folder, const std::vector<TensorInfo>& tensors,
                     std::uint64_t max_shard_bytes = kDefaultShardBytes);

  void write(std::string_view name, std::uint64_t offset, std::size_t bytes,
             const void* source);  // from any thread
  void commit();

 private:
  struct Target {
    SafetensorsWriter* writer;
    const TensorInfo* info;
  };

  std::string index_text() const;

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::unordered_map<std::string_view, Target> targets_;
};

// As Transformers names them: "model.safetensors", or "model-00001-of-00003.safetensors" and so on from `index` 0.
std::string shard_name(std::size_t index, std::size_t count);

// Copies what makes a folder of weights a model (tokenizer, chat template, generation settings, licence), except config.json. Model
// code and other weights stay behind.
void copy_side_files(const std::string& from_folder, const std::string& to_folder);

// True when `path`, links followed, stays inside `folder` or inside the hub cache entry (models--*) that holds the folder.
bool stays_inside(const std::string& folder, const std::string& path);

}  // namespace phalanx
