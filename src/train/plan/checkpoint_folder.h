// What can be known of training checkpoints without their tensors: which there are, how far they got, whether they are whole. Their
// format stands in train/training_checkpoint.h.
#pragma once
#include "core/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

constexpr std::int64_t kCheckpointFormat = 1;

// "step-00000012"
std::string checkpoint_name(std::int64_t step);

// Paths of the checkpoints in a folder, oldest first; empty when the folder does not exist.
std::vector<std::string> list_checkpoints(const std::string& checkpoints);

// The checkpoint that `source` names: a checkpoint itself, or the newest of a run folder. Throws IoError when it is neither.
std::string find_checkpoint(const std::string& source);

// progress.json, checked against the manifest. Throws IoError.
Json read_progress(const std::string& folder);

// Reads all of it and compares every checksum. Throws IoError that names file and tensor.
void verify_checkpoint(const std::string& folder);

// The newest of `checkpoints` older than `damaged` that is whole.
std::optional<std::string> newest_intact_before(const std::string& checkpoints, const std::string& damaged);

// Removes all but the newest `keep` and what an interrupted save left.
void prune_checkpoints(const std::string& checkpoints, std::int64_t keep);

// manifest.json as read: whatever it lacks is an IoError that names it.
class CheckpointManifest {
 public:
  explicit CheckpointManifest(const std::string& folder);

  // The checksum of a file, or of a tensor of a file, compared with the one found.
  void check(const std::string& file, const std::string& found) const;
  void check(const std::string& file, const std::string& tensor, const std::string& found) const;
  std::vector<std::string> tensors(const std::string& file) const;

 private:
  const Json& entry(const Json& json, const std::string& name) const;

  std::string folder_;
  Json json_;
};

}  // namespace phalanx
