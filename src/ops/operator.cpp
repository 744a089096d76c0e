#include "ops/operator.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace phalanx {

bool can_use_gpu() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("phalanx::_rms_norm_forward", "");
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) && at::globalContext().hasCUDA();
}

MemoryPeak gpu_memory_peak(at::Device gpu) {
  constexpr std::size_t kAll = 0;  // of the kinds of memory pools
  const auto stats = c10::getDeviceAllocator(gpu.type())->getDeviceStats(gpu.index());
  return {stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].peak};
}

}  // namespace phalanx
