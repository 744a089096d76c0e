// From token shards on disk to batches, deterministic and resumable.
//
// The rows of an epoch stand in one order that all ranks know. A batch takes the next `world * rows` of them, each
// rank its share; the last batch of an epoch takes what is left, so that no sample is repeated and none left out.
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
  std::vector<std::int64_t> sample_ids;  // of the documents: counted through the folders
  std::int64_t supervised_tokens = 0;    // labels that are not -100; 0 is legal
};

struct LoaderOptions {
  std::int64_t sequence_length = 1024;  // tokens of a row
  bool packing = true;                  // several documents a row; otherwise one
  std::string on_long = "drop";         // drop | truncate | error: a sample longer than sequence_length
  std::int64_t rows = 1;                // of a rank's batch
  std::uint64_t seed = 0;
  bool shuffle = true;  // another order in every epoch; otherwise always the same
  int rank = 0;         // of the data-parallel group
  int world = 1;
  double validation_fraction = 0.0;  // of the samples, drawn by `seed`, kept apart
  bool validation_part = false;      // load those instead of the others
};

class DataLoader {
 public:
  // Opens and checks the folders. Throws IoError for a damaged folder and for a token id outside [0, vocab_size)
  // (file, sample, position, id); ConfigError for a bad option, for a long sample where on_long is "error", when
  // no sample is usable, and when an epoch has fewer rows than there are ranks.
  DataLoader(const std::vector<std::string>& folders, const LoaderOptions& options, std::int64_t vocab_size);
  ~DataLoader();

  // The next batch of this rank; goes on into the next epoch by itself. At the end of an epoch a batch has fewer
  // rows, on some ranks perhaps none.
  Batch next();
  std::int64_t batches_per_epoch() const;
  double epoch() const;              // 1.5: in the middle of the second epoch
  std::int64_t num_samples() const;  // of an epoch, all ranks together, as all counts here
  std::int64_t num_rows() const;     // of an epoch
  std::int64_t num_dropped() const;  // too long, or nothing to learn left after truncation
  std::int64_t num_truncated() const;
  std::int64_t longest_sample() const;  // tokens, before anything was dropped or cut
  std::int64_t tokens_per_epoch() const;
  std::int64_t supervised_tokens_per_epoch() const;
  double fill_rate() const;  // tokens of an epoch / (rows * sequence_length)

  // The position in the data, the same on every rank and independent of their number: the next row, not the next
  // batch.
  Json state() const;
  // Throws ConfigError, naming what differs, when the state belongs to other data or another order.
  void restore(const Json& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx
