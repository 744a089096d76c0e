// What an operator takes instead of a bare weight tensor.
//
// Legend: E experts, H hidden, I width of an expert.
#pragma once
#include <ATen/core/Tensor.h>

namespace phalanx {

struct LinearWeights {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
};

struct ExpertWeights {
  at::Tensor gate_up;  // [E, 2I, H], gate rows first
  at::Tensor down;     // [E, H, I]
};

}  // namespace phalanx
