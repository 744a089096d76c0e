// A model as data: its layers, its parameters, how a checkpoint on disk maps to them. No tensor and no torch
// here, so that `inspect` and `plan` answer in milliseconds; models/decoder.h runs the forward pass from the
// same data.
//
// Legend: H hidden size, E experts, I expert width, V vocabulary.
#pragma once
#include "core/dtype.h"
#include "core/json.h"
#include "models/spec/weight_map.h"
#include "ops/specs.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

// One parameter, with the name and shape of Transformers v5's module.
struct ParameterSpec {
  std::string name;                 // "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<std::int64_t> shape;  // [E, 2I, H]
  bool decay = true;                // weight decay applies (false for norm weights and biases)
  bool expert = false;              // the leading dimension is the expert: sharded by expert parallelism
  bool fp32 = false;                // held in fp32 beside narrower parameters
  bool trained = true;              // false: a buffer of Transformers' module, written back as it was read
  std::int64_t numel() const;
};

// An expert that every token passes, beside the chosen ones.
struct SharedExpertSpec {
  std::string module;      // its name in the layer's `mlp`
  std::int64_t width = 0;  // S
  bool gated = false;      // its output is scaled by the sigmoid of the linear layer `module`_gate [1, H]
};

// The feed-forward half of a layer: a mixture of experts when `router` is set, else one gated MLP.
struct FeedForwardSpec {
  std::optional<RouterSpec> router;
  std::int64_t width = 0;  // I of an expert, or of the dense MLP
  std::optional<SharedExpertSpec> shared = std::nullopt;
};

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
};

struct ModelSpec {
  std::string family;        // config.json's model_type, "qwen3_moe"
  std::string architecture;  // "Qwen3MoeForCausalLM"
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tied_head = false;
  std::optional<std::int64_t> pad_token;  // its embedding gets no gradient from the input side
  double router_aux_loss_coef =
      0.0;                     // 0 unless config.json asks for the auxiliary loss (output_router_logits)
  std::optional<Dtype> dtype;  // of the checkpoint, as config.json states it
  RopeSpec rope;
  std::vector<LayerSpec> layers;
  std::vector<ParameterSpec> parameters;  // in module order; a tied head has no entry of its own
  WeightMap weights;                      // checkpoint names <-> parameters
  Json config;                            // config.json as read, written back on export

  std::int64_t num_parameters() const;         // without buffers
  std::int64_t num_active_parameters() const;  // those a token touches
  // Model FLOP per token of forward + backward, the attention core counted at half the square of
  // `sequence_length`.
  double flops_per_token(std::int64_t sequence_length) const;
};

// Reads and checks config.json of a model folder: every field in range before anything is allocated. Throws
// ConfigError that names file, field, value and rule; a family that is not built is named together with the
// nearest one that is.
ModelSpec load_model_spec(const std::string& model_dir);
ModelSpec make_model_spec(const Json& config, const std::string& where);

// Families, for messages and tests.
std::vector<std::string> registered_families();

}  // namespace phalanx
