// How the tensors of a checkpoint on disk become parameters in memory, as data, both ways.
//
// A family states rules; `WeightMap` turns them into placements: which checkpoint tensor fills which slice of
// which parameter. A released checkpoint has one tensor per expert, Transformers v5 holds them merged; both
// forms are found in the wild, so a family may state several forms of the same parameter and the checkpoint's
// names choose.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace phalanx {

// `source` fills elements of `parameter` from `offset` on. Row-major order makes stacking experts (dimension
// 0) and putting gate above up (dimension 1 within an expert) contiguous, so the bytes go straight from the
// file to their place.
struct Placement {
  std::string source;                      // name in the checkpoint
  std::vector<std::int64_t> source_shape;  // as stored in the checkpoint
  std::string parameter;
  std::int64_t offset = 0;  // in elements
  bool transpose = false;   // the last two dimensions are swapped between file and memory
};

// One way a checkpoint can store one parameter.
struct WeightForm {
  std::vector<Placement> placements;
};

// All ways in which `parameter` occurs on disk; the first is the released layout, written by default.
struct WeightRule {
  std::string parameter;
  std::vector<WeightForm> forms;
};

struct WeightMap {
  std::vector<WeightRule> rules;
  // Names that are no parameter but legal to meet (a head stored although it is tied, inverse frequencies).
  std::vector<std::string> ignored;
};

// Builders that the families' weight maps are written with.
struct ParameterSpec;
WeightRule same_name(const ParameterSpec& parameter);
// Under `on_disk`; or under the parameter's own name.
WeightRule renamed(const ParameterSpec& parameter, const std::string& on_disk);
// Experts one by one on disk: `prefix`E`.gate`, `.up` (rows stacked, gate first) -> [E, 2I, H]; `.down` ->
// [E, H, I]; or merged under the parameter's own name.
WeightRule stacked_experts(const ParameterSpec& parameter, const std::string& prefix,
                           const std::vector<std::string>& suffixes);

}  // namespace phalanx
