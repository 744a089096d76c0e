// Free memory of the GPU that a run would take, asked of the driver (NVML) without loading torch or CUDA.
#include "core/engine_library.h"
#include "core/error.h"
#include "train/plan/memory_plan.h"

#include <cstdlib>
#include <dlfcn.h>

namespace phalanx {
namespace {

// Of NVML's interface, which NVIDIA keeps stable: its memory record, and 0 for success.
struct NvmlMemory {
  unsigned long long total, free, used;
};
using NvmlDevice = struct nvmlDevice_st*;

class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    open_ = library_ != nullptr && call<int()>("nvmlInit_v2") == 0;
  }
  ~Nvml() {
    if (open_) {
      call<int()>("nvmlShutdown");
    }
    if (library_ != nullptr) {
      ::dlclose(library_);
    }
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<std::uint64_t> free_bytes(unsigned index) const {
    NvmlDevice device = nullptr;
    NvmlMemory memory{};
    if (!open_ || call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", index, &device) != 0 ||
        call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &memory) != 0) {
      return std::nullopt;
    }
    return memory.free;
  }

 private:
  template <class Signature, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<Signature*>(::dlsym(library_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

  void* library_;
  bool open_ = false;
};

// The first GPU that CUDA_VISIBLE_DEVICES leaves, where it names numbers.
unsigned visible_gpu() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? 0 : static_cast<unsigned>(std::strtoul(visible, nullptr, 10));
}

}  // namespace

AvailableMemory available_memory(const std::string& device) {
  if (device == "cpu" || !engine_is_built_for_gpus()) {
    return available_host_memory();
  }
  const std::optional<std::uint64_t> free = Nvml().free_bytes(visible_gpu());
  PHALANX_CHECK(free || device == "auto", ConfigError,
                "train.device is cuda, but the driver shows no GPU; use auto or cpu");
  return free ? AvailableMemory{*free, "the GPU's free memory", true} : available_host_memory();
}

}  // namespace phalanx
