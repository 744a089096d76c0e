// From token shards on disk to batches, deterministic and resumable.
//
// `phalanx prepare` writes a folder: manifest.json and safetensors shards, each with `tokens` [N] int32,
// `loss_mask` [N] uint8 (1: the token is a target of the loss) and `offsets` [samples + 1] int64.
#pragma once
#include "core/json.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace phalanx {

// Rows of packed documents, laid end to end without padding.
struct Batch {
  std::vector<std::int64_t> tokens;   // [T]
  std::vector<std::int64_t> labels;   // [T] already shifted: the token to predict at each position, or -100
  std::vector<std::int64_t> lengths;  // of the documents, sum = T
  std::vector<std::int64_t> sample_ids;  // of the documents
  std::int64_t supervised_tokens = 0;    // labels that are not -100
};

struct LoaderOptions {
  std::int64_t sequence_length = 1024;
  bool packing = true;
  std::string on_long = "drop";  // drop | truncate | error
  std::int64_t rows = 1;         // packed rows per batch
  std::uint64_t seed = 0;
  bool shuffle = true;
  int rank = 0;  // of the data-parallel group
  int world = 1;
};

class DataLoader {
 public:
  // Opens and checks the folders; a token id outside [0, vocab_size) is an error that names file, sample,
  // token and limit. Throws IoError, ConfigError when no sample is usable.
  DataLoader(const std::vector<std::string>& folders, const LoaderOptions& options, std::int64_t vocab_size);
  ~DataLoader();

  // The next batch of this rank; goes on into the next epoch by itself. Each sample occurs exactly once an
  // epoch.
  Batch next();
  std::int64_t batches_per_epoch() const;
  double epoch() const;  // 1.5: in the middle of the second epoch
  std::int64_t num_samples() const;
  std::int64_t num_dropped() const;
  std::int64_t tokens_per_epoch() const;
  double fill_rate() const;  // used share of the packed rows

  Json state() const;               // epoch and position
  void restore(const Json& state);  // throws ConfigError when it belongs to other data or options

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx
