// Calls an operator of the `phalanx` namespace through torch's dispatcher, which picks the CPU, CUDA or Meta
// kernel that bind/device_operators.cpp registered.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

namespace phalanx {

// The typed handle; keep it in a function-local static, finding it takes microseconds.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Whether this engine was built with kernels for GPUs and there is one.
bool can_use_gpu();

// What torch's allocator held at most since the start of the process, in bytes.
struct MemoryPeak {
  std::int64_t allocated, reserved;
};
MemoryPeak gpu_memory_peak(at::Device gpu);

}  // namespace phalanx
