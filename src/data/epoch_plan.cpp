#include "data/epoch_plan.h"

#include "core/philox.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace phalanx {
namespace {

// Streams of the generator: two for each epoch, and the last one for the split.
constexpr std::uint64_t kSplitStream = ~std::uint64_t{0};
std::uint64_t sample_stream(std::uint64_t epoch) { return 2 * epoch; }
std::uint64_t row_stream(std::uint64_t epoch) { return 2 * epoch + 1; }

// Uniform in [0, bound), up to a bias of bound / 2^64.
std::uint64_t draw_below(std::uint64_t bound, std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const PhiloxBlock block = philox_block(seed, stream, index);
  const std::uint64_t bits = (std::uint64_t{block[0]} << 32) | block[1];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
}

// Fisher-Yates; std::shuffle differs between standard libraries.
template <class Item>
void shuffle(std::vector<Item>& items, std::uint64_t seed, std::uint64_t stream) {
  for (std::uint64_t left = items.size(); left > 1; --left) {
    std::swap(items[left - 1], items[draw_below(left, seed, stream, left)]);
  }
}

}  // namespace

std::vector<Row> plan_epoch(std::vector<std::int64_t> samples, const std::vector<std::int64_t>& lengths,
                            const EpochPlanOptions& options, std::uint64_t epoch) {
  if (options.shuffle) {
    shuffle(samples, options.seed, sample_stream(epoch));
  }
  if (!options.packing) {
    std::vector<Row> rows;
    for (const std::int64_t sample : samples) {
      rows.push_back({sample});
    }
    return rows;
  }
  std::vector<Row> rows = pack_rows(samples, lengths, options.sequence_length);
  if (options.shuffle) {
    shuffle(rows, options.seed, row_stream(epoch));  // packing leaves the longest documents in front
  }
  return rows;
}

Split split_samples(std::int64_t count, double fraction, std::uint64_t seed) {
  std::vector<std::int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  shuffle(ids, seed, kSplitStream);
  const std::int64_t wanted = fraction > 0 ? std::max<std::int64_t>(1, std::llround(fraction * count)) : 0;
  const auto middle = ids.begin() + std::min(wanted, count);
  Split split{.train = {middle, ids.end()}, .validation = {ids.begin(), middle}};
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.validation.begin(), split.validation.end());
  return split;
}

}  // namespace phalanx
