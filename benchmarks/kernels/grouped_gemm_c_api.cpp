// The grouped GEMM kernels behind plain C functions, for benchmarks/grouped_gemm.py to call through ctypes.
//
// Each returns nullptr, or the message of the error thrown, valid until the next call. `ends` is [E] int32 on the device.
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/swiglu_gemm.h"

#include <string>

namespace {

using namespace phalanx::kernels;

template <class Call>
const char* guarded(Call call) {
  static std::string message;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" {

const char* phalanx_grouped_gemm(const std::int32_t* ends, int experts, int rows, const void* x,
                                 const void* weight, void* y, int n, int k, int in_out, cudaStream_t stream) {
  const WeightLayout layout = in_out != 0 ? WeightLayout::kInOut : WeightLayout::kOutIn;
  return guarded([&] { grouped_gemm({{ends, experts, rows}, x, weight, y, n, k, layout}, stream); });
}

const char* phalanx_grouped_gemm_weight_grad(const std::int32_t* ends, int experts, int rows, const void* dy,
                                             const void* x, void* dw, int n, int k, int fp32, int accumulate,
                                             cudaStream_t stream) {
  return guarded([&] {
    grouped_gemm_weight_grad({{ends, experts, rows}, dy, x, dw, n, k, fp32 != 0, accumulate != 0}, stream);
  });
}

const char* phalanx_swiglu_gemm(const std::int32_t* ends, int experts, int rows, const void* x,
                                const void* weight, void* z, void* a, int intermediate, int k,
                                cudaStream_t stream) {
  return guarded([&] { swiglu_gemm({{ends, experts, rows}, x, weight, z, a, intermediate, k}, stream); });
}

const char* phalanx_swiglu_grad_gemm(const std::int32_t* ends, int experts, int rows, const void* dy,
                                     const void* weight, const void* z, const float* scale, void* dz,
                                     void* scaled_a, float* ds_partials, int intermediate, int hidden,
                                     cudaStream_t stream) {
  return guarded([&] {
    swiglu_grad_gemm(
        {{ends, experts, rows}, dy, weight, z, scale, dz, scaled_a, ds_partials, intermediate, hidden},
        stream);
  });
}

int phalanx_swiglu_grad_partials(int intermediate) { return swiglu_grad_partials(intermediate); }

}  // extern "C"
