#include "train/plan/activation_memory.h"

#include <algorithm>

namespace phalanx {
namespace {

std::uint64_t size_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Legend: T tokens, H hidden size, E experts, K experts per token, I expert width, D head size.
struct Sizes {
  Sizes(const ModelSpec& spec, const LayerSpec& layer)
      : hidden(size_of(spec.hidden_size)),
        heads(size_of(layer.attention.num_heads)),
        head_dim(size_of(layer.attention.head_dim)),
        projections((heads + 2 * size_of(layer.attention.num_kv_heads)) * head_dim),
        width(size_of(layer.feed_forward.width)) {
    if (layer.feed_forward.router) {
      top_k = size_of(layer.feed_forward.router->top_k);
      experts = size_of(layer.feed_forward.router->num_experts);
    }
    if (layer.feed_forward.shared) {
      shared = size_of(layer.feed_forward.shared->width);
    }
  }
  std::uint64_t hidden, heads, head_dim;
  std::uint64_t projections;  // q, k and v together
  std::uint64_t width;
  std::uint64_t top_k = 0, experts = 0;  // 0 in a dense layer
  std::uint64_t shared = 0;
};

// Saved for backward by one layer, in elements of the activations' type and in bytes of fixed types.
std::uint64_t saved_bytes(const Sizes& s, const ActivationSetting& setting) {
  std::uint64_t elements = 2 * s.hidden             // inputs of the two halves
                           + s.projections          // before norm and RoPE
                           + s.heads * s.head_dim;  // attention output
  if (!setting.on_gpu) {
    elements += 2 * s.hidden + s.projections;  // the CPU's allocator holds on to what was there in between
  }
  std::uint64_t fixed = 4 * (s.heads + 2);  // log-sum-exp, rstd of the norms
  if (s.top_k > 0) {
    elements += s.top_k * 2 * s.width;               // pre-activations
    fixed += 4 * s.experts + s.top_k * (4 + 8 + 8);  // scores; weights, experts and row order
    elements += s.shared > 0 ? 2 * s.shared + 1 : 0;
  } else {
    elements += 2 * s.width;
  }
  return setting.tokens * (elements * setting.element + fixed);
}

// Kept of them when the rest is made again.
std::uint64_t kept_bytes(const Sizes& s, const ActivationSetting& setting) {
  if (setting.recompute == "none") {
    return saved_bytes(s, setting);
  }
  const std::uint64_t attention =
      setting.recompute == "selective" ? s.heads * s.head_dim * setting.element + 4 * s.heads : 0;
  return setting.tokens * (s.hidden * setting.element + attention + 4 * s.top_k);
}

// Gathered rows, their gradients, activations and pre-activation gradients of the experts' backward pass: on a GPU rows and
// gradients of one product at a time.
std::uint64_t layer_passing(const Sizes& s, const ActivationSetting& setting) {
  const std::uint64_t rows = setting.tokens * std::max<std::uint64_t>(1, s.top_k);
  if (!setting.on_gpu) {
    return rows * (2 * s.hidden + 4 * s.width) * setting.element;
  }
  return (rows * (s.hidden + 3 * s.width) + 4 * setting.tokens * s.hidden) * setting.element;
}

std::uint64_t head_passing(const ModelSpec& spec, const ActivationSetting& setting) {
  const std::uint64_t vocab = size_of(spec.vocab_size), weight = vocab * size_of(spec.hidden_size);
  if (!setting.on_gpu) {
    constexpr std::uint64_t kChunk = 1024;  // tokens whose logits exist at a time
    return 3 * std::min(setting.tokens, kChunk) * vocab * 4;
  }
  const std::uint64_t chunk_bytes = std::uint64_t{1280} << 20;  // as cross_entropy_chunk_rows cuts
  const std::uint64_t logits = std::min(setting.tokens * vocab * setting.element, chunk_bytes);
  // The gradient of the head is summed in fp32; beside it a chunk of logits, or the gradient as it is handed out.
  const std::uint64_t narrow = setting.element < 4 ? weight * setting.element : 0;
  return weight * 4 + std::max(logits, narrow) +
         3 * setting.tokens * size_of(spec.hidden_size) * setting.element;
}

}  // namespace

ActivationMemory activation_memory(const ModelSpec& spec, const ActivationSetting& setting) {
  ActivationMemory result;
  for (const LayerSpec& layer : spec.layers) {
    const Sizes sizes(spec, layer);
    result.kept += kept_bytes(sizes, setting);
    if (setting.recompute != "none") {
      result.restored = std::max(result.restored, saved_bytes(sizes, setting));
    }
    result.layer_most = std::max(result.layer_most, layer_passing(sizes, setting));
  }
  result.head_most = head_passing(spec, setting);
  return result;
}

}  // namespace phalanx
