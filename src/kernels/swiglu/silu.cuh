// silu(x) = x sigmoid(x) and its derivative, in fp32.
#pragma once

namespace phalanx::kernels {

struct Silu {
  float value;
  float slope;
};

__device__ inline Silu silu(float x) {
  const float sigmoid = __fdividef(1.0f, 1.0f + __expf(-x));
  return {x * sigmoid, sigmoid * (1.0f + x * (1.0f - sigmoid))};
}

}  // namespace phalanx::kernels
