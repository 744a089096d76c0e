// What the CUDA kernels of the device operators share: the stream of a call and the untyped view of its tensors.
#pragma once
#include "core/error.h"
#include "kernels/common/element.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

namespace phalanx::cuda {

// Makes the tensor's device the current one while it lives; launches go to torch's stream of that device.
class Launch {
 public:
  explicit Launch(const at::Tensor& tensor)
      : guard_(tensor.device()), stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index())) {}
  cudaStream_t stream() const { return stream_; }

 private:
  c10::cuda::CUDAGuard guard_;
  cudaStream_t stream_;
};

// Throws Error, naming the operator, for what the kernels do not compute.
inline kernels::Element element_of(const at::Tensor& tensor, const char* op) {
  PHALANX_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16, Error, op, ": ",
                tensor.scalar_type(), " on a GPU; expected float32 or bfloat16 (float64 runs on the CPU)");
  return tensor.scalar_type() == at::kFloat ? kernels::Element::kFp32 : kernels::Element::kBf16;
}

// Contiguous and of the dtype a kernel was chosen for; undefined stays undefined.
inline at::Tensor operand(const std::optional<at::Tensor>& tensor, at::ScalarType dtype) {
  return tensor.has_value() ? tensor->to(dtype).contiguous() : at::Tensor();
}

inline const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace phalanx::cuda
