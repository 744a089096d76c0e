#include "ops/operator.h"

#include <ATen/Context.h>

namespace phalanx {

bool can_use_gpu() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("phalanx::_rms_norm_forward", "");
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) && at::globalContext().hasCUDA();
}

}  // namespace phalanx
