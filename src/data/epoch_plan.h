// The order of one epoch: a pure function of (seed, epoch) and the lengths, the same on every rank.
#pragma once
#include "data/packing.h"

#include <cstdint>
#include <vector>

namespace phalanx {

struct EpochPlanOptions {
  std::int64_t sequence_length = 0;  // tokens of a row
  bool packing = true;               // otherwise one sample a row
  bool shuffle = true;
  std::uint64_t seed = 0;
};

// Every one of `samples` in exactly one row; the number of rows is the same in every epoch.
std::vector<Row> plan_epoch(std::vector<std::int64_t> samples, const std::vector<std::int64_t>& lengths,
                            const EpochPlanOptions& options, std::uint64_t epoch);

struct Split {
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> validation;
};

// Draws round(fraction * count) of the ids 0 ... count - 1 for validation, at least one when fraction > 0; both
// parts in ascending order.
Split split_samples(std::int64_t count, double fraction, std::uint64_t seed);

}  // namespace phalanx
