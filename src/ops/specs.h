// What distinguishes one model family from another, as plain data. The operators read these; no operator
// knows a family.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

// Rotary position embedding. `inv_freq` [rotary_dim / 2] already holds the scaling (linear, yarn, llama3,
// ...).
struct RopeSpec {
  std::vector<double> inv_freq;
  double attention_scaling = 1.0;  // cos and sin are multiplied by it
};

// Where q and k get an RMSNorm before RoPE: nowhere, on each head by itself, or on all heads of the projection together.
enum class QkNorm { kNone, kPerHead, kAllHeads };

struct AttentionSpec {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 0.0;                          // of the scores, head_dim^-0.5 as a rule
  std::optional<std::int64_t> sliding_window;  // a query sees this many keys, itself included
  bool qkv_bias = false;
  bool out_bias = false;  // on o
  QkNorm qk_norm = QkNorm::kNone;
  double norm_eps = 1e-6;          // of the q and k norms
  std::optional<double> clip_qkv;  // q, k and v are cut off at +-this, after a norm over all heads
};

enum class ScoreFunction { kSoftmax, kSigmoid };

struct RouterSpec {
  std::int64_t num_experts = 0;  // E <= 512
  std::int64_t top_k = 0;        // K <= 32
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool normalize = false;  // the K weights of a token are divided by their sum
  double scale = 1.0;      // routed scaling factor, after the normalisation
  // Experts may be chosen by more than their scores (ops/expert_choice.h); they are weighed by the scores alone.
  bool correction_bias = false;  // added to the scores for the choice; fp32, not trained
  std::int64_t num_groups = 1;   // of experts, of which only
  std::int64_t top_groups = 1;   // the best are chosen from
  bool fp32 = false;             // its weight is held and its logits are computed in fp32
};

enum class ExpertsImplementation { kAuto, kEager, kBatchedMm, kGroupedMm, kPhalanx };
const char* experts_implementation_name(ExpertsImplementation implementation);
ExpertsImplementation experts_implementation_from_name(const std::string& name);  // throws ConfigError

}  // namespace phalanx
