#include "data/packing.h"

#include "core/error.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace phalanx {
namespace {

// Documents that are in no row yet.
class Pool {
 public:
  using ByLength = std::map<std::int64_t, std::vector<std::int64_t>>;

  void add(std::int64_t length, std::int64_t sample) { by_length_[length].push_back(sample); }
  bool empty() const { return by_length_.empty(); }
  std::int64_t longest() const { return by_length_.rbegin()->first; }

  // 0 when none fits.
  std::int64_t longest_within(std::int64_t room) const {
    const auto above = by_length_.upper_bound(room);
    return above == by_length_.begin() ? 0 : std::prev(above)->first;
  }

  std::int64_t take(std::int64_t length) {
    const auto entry = by_length_.find(length);
    const std::int64_t sample = entry->second.back();
    entry->second.pop_back();
    if (entry->second.empty()) {
      by_length_.erase(entry);
    }
    return sample;
  }

  // The two lengths, longer first, whose sum is the largest within room; a second length of 0 stands for one document
  // alone.
  std::pair<std::int64_t, std::int64_t> best_pair(std::int64_t room) const {
    std::pair<std::int64_t, std::int64_t> best{0, 0};
    for (auto it = ByLength::const_reverse_iterator(by_length_.upper_bound(room)); it != by_length_.rend();
         ++it) {
      const std::int64_t first = it->first;
      if (2 * first <= best.first + best.second) {
        break;  // the second is no longer than the first
      }
      const std::int64_t second = longest_beside(it, room - first);
      if (first + second > best.first + best.second) {
        best = {first, second};
      }
      if (best.first + best.second == room) {
        break;
      }
    }
    return best;
  }

 private:
  // The longest document within room that is no longer than, and not the same one as, `first`.
  std::int64_t longest_beside(const ByLength::const_reverse_iterator& first, std::int64_t room) const {
    const std::int64_t limit = first->second.size() > 1 ? first->first : first->first - 1;
    return longest_within(std::min(room, limit));
  }

  ByLength by_length_;
};

Row fill_row(Pool& pool, std::int64_t capacity) {
  Row row;
  std::int64_t room = capacity;
  const auto put = [&](std::int64_t length) {
    row.push_back(pool.take(length));
    room -= length;
  };
  put(pool.longest());
  while (!pool.empty() && pool.longest_within(room) > 0) {
    if (room > 2 * pool.longest()) {
      put(pool.longest());
      continue;
    }
    const auto [first, second] = pool.best_pair(room);
    put(first);
    if (second > 0) {
      put(second);
    }
  }
  return row;
}

}  // namespace

std::vector<Row> pack_rows(const std::vector<std::int64_t>& samples, const std::vector<std::int64_t>& lengths,
                           std::int64_t capacity) {
  Pool pool;
  for (const std::int64_t sample : samples) {
    const std::int64_t length = lengths[sample];
    PHALANX_CHECK(length >= 1 && length <= capacity, Error, "packing: sample ", sample, " has ", length,
                  " tokens, a row holds 1 to ", capacity);
    pool.add(length, sample);
  }
  std::vector<Row> rows;
  while (!pool.empty()) {
    rows.push_back(fill_row(pool, capacity));
  }
  return rows;
}

}  // namespace phalanx
