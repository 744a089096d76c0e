#include "core/error.h"
#include "ops/aten_compat.h"
#include "ops/grouped_linear.h"
#include "ops/grouped_linear_host.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace phalanx {
namespace {

// A range [begin, end) of one expert: rows, or of grad_weight the longer side of its matrix.
using Tile = ExpertRange;

void append_tiles(std::vector<Tile>& tiles, Tile whole, std::int64_t tile_rows) {
  for (std::int64_t begin = whole.begin; begin < whole.end; begin += tile_rows) {
    tiles.push_back({whole.expert, begin, std::min(whole.end, begin + tile_rows)});
  }
}

// Runs every tile once, each on one thread. The tiles depend on the shapes alone, so the result is the same on any
// number of threads.
template <class Run>
void run_tiles(const std::vector<Tile>& tiles, const Run& run) {
  std::atomic<std::size_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // not inherited from the calling thread
    const aten::SingleThreadedProducts single_threaded;
    for (std::size_t i = next++; i < tiles.size(); i = next++) {
      run(tiles[i]);
    }
  });
}

at::Tensor eager_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  constexpr std::int64_t kTileRows = 256;
  std::vector<Tile> tiles;
  for (const Tile& group : expert_ranges(ends)) {
    append_tiles(tiles, group, kTileRows);
  }
  at::Tensor y = x.new_empty({x.size(0), weight.size(1)});
  run_tiles(tiles, [&](const Tile& tile) {
    at::Tensor out = y.narrow(0, tile.begin, tile.end - tile.begin);
    at::_ops::mm_out::call(x.narrow(0, tile.begin, tile.end - tile.begin), weight.select(0, tile.expert).t(),
                           out);
  });
  return y;
}

at::Tensor eager_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  constexpr std::int64_t kTileWidth = 128;
  const std::vector<Tile> groups = expert_ranges(ends);
  const std::int64_t longer = grad_y.size(1) >= x.size(1) ? 0 : 1;  // dimension of the matrix that is cut
  at::Tensor grad = x.new_empty({ends.numel(), grad_y.size(1), x.size(1)});
  std::vector<Tile> tiles;
  for (const Tile& group : groups) {
    append_tiles(tiles, {group.expert, 0, grad.size(1 + longer)}, kTileWidth);
  }
  run_tiles(tiles, [&](const Tile& tile) {
    const auto [_, begin, end] = groups[tile.expert];
    at::Tensor out = grad.select(0, tile.expert).narrow(longer, tile.begin, tile.end - tile.begin);
    if (begin == end) {
      out.zero_();
      return;
    }
    at::Tensor left = grad_y.narrow(0, begin, end - begin), right = x.narrow(0, begin, end - begin);
    at::Tensor& cut = longer == 0 ? left : right;
    cut = cut.narrow(1, tile.begin, tile.end - tile.begin);
    at::_ops::mm_out::call(left.t(), right, out);
  });
  return grad;
}

at::Tensor grouped_mm_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  return aten::grouped_mm(x, weight.transpose(1, 2), ends);
}

at::Tensor grouped_mm_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  return aten::grouped_mm(grad_y.t(), x, ends);
}

struct Implementation {
  at::Tensor (*linear)(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends);
  at::Tensor (*weight_grad)(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends);
};

Implementation find_implementation(std::int64_t number) {
  switch (static_cast<ExpertsImplementation>(number)) {
    case ExpertsImplementation::kEager:
      return {eager_linear, eager_weight_grad};
    case ExpertsImplementation::kBatchedMm:
      return {batched_linear, batched_weight_grad};
    case ExpertsImplementation::kGroupedMm:
      return {grouped_mm_linear, grouped_mm_weight_grad};
    case ExpertsImplementation::kPhalanx:
    case ExpertsImplementation::kAuto:
      break;
  }
  fail("grouped_linear: implementation ", number,
       " has no kernel; choose_experts_implementation() finds one");
}

}  // namespace

at::Tensor grouped_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                              std::int64_t implementation) {
  return find_implementation(implementation).linear(x.contiguous(), weight.detach(), ends);
}

at::Tensor grouped_linear_weight_grad_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                          const at::Tensor& ends, std::int64_t implementation) {
  return find_implementation(implementation).weight_grad(grad_y.contiguous(), x.contiguous(), ends);
}

}  // namespace phalanx
