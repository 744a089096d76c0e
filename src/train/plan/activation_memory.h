// Bytes of what forward keeps for backward, and of what lives while a part of the model runs.
#pragma once
#include "models/spec/model_spec.h"

#include <cstdint>
#include <string>

namespace phalanx {

struct ActivationSetting {
  std::uint64_t tokens;   // of a micro-batch
  std::uint64_t element;  // bytes of an activation
  std::string recompute;  // none | selective | full
  bool on_gpu;
};

struct ActivationMemory {
  std::uint64_t kept = 0;        // by all layers, at the end of forward
  std::uint64_t restored = 0;    // of one layer, made again in its backward pass
  std::uint64_t layer_most = 0;  // passing, while one layer runs
  std::uint64_t head_most = 0;   // passing, while head and loss run, gradient of the head included
};

ActivationMemory activation_memory(const ModelSpec& spec, const ActivationSetting& setting);

}  // namespace phalanx
