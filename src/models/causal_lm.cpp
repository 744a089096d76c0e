#include "models/causal_lm.h"

#include "core/error.h"
#include "core/thread_pool.h"
#include "io/hf_checkpoint.h"
#include "io/hub_cache.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/expert_shares.h"

namespace phalanx {
namespace {

std::vector<ParameterBuffer> buffers_of(const ParameterSet& parameters) {
  std::vector<ParameterBuffer> buffers;
  for (const Parameter& parameter : parameters.list()) {
    PHALANX_CHECK(parameter.tensor.is_cpu() && parameter.tensor.is_contiguous(), Error, parameter.name,
                  ": parameters are read and written on the CPU, contiguous");
    buffers.push_back({parameter.name, to_dtype(parameter.tensor.scalar_type()),
                       parameter.tensor.sizes().vec(), parameter.tensor.mutable_data_ptr()});
    if (parameter.total_rows > 0) {
      ParameterBuffer& buffer = buffers.back();
      buffer.first_row = parameter.first_row;
      buffer.rows = buffer.shape.at(0);
      buffer.shape.at(0) = parameter.total_rows;
    }
  }
  return buffers;
}

}  // namespace

CausalLM CausalLM::from_pretrained(const std::string& model, std::optional<at::ScalarType> dtype,
                                   at::Device device, const Mesh& mesh) {
  CausalLM result = without_weights(model, dtype, at::kCPU, mesh);
  const HfCheckpoint checkpoint(result.source_);
  ThreadPool threads;
  load_parameters(result.spec_.weights, checkpoint, buffers_of(result.parameters_), threads);
  if (!device.is_cpu()) {
    result.parameters_ = result.parameters_.to(result.parameters_.dtype(), device);
  }
  return result;
}

CausalLM CausalLM::without_weights(const std::string& model, std::optional<at::ScalarType> dtype,
                                   at::Device device, const Mesh& mesh) {
  CausalLM result;
  result.source_ = resolve_model(model);
  result.spec_ = load_model_spec(result.source_);
  result.mesh_ = mesh;
  check_expert_shares(result.spec_, mesh.ep_size);
  const at::ScalarType stored = to_scalar_type(result.spec_.dtype.value_or(Dtype::kF32));
  result.parameters_ =
      ParameterSet(result.spec_, dtype.value_or(stored), device, mesh.ep_rank(), mesh.ep_size);
  return result;
}

void CausalLM::save_pretrained(const std::string& folder, const SaveOptions& options) const {
  const HfCheckpoint source(source_);
  SaveModelOptions how;
  how.max_shard_bytes = options.max_shard_bytes;
  how.dtype = options.dtype;
  how.chat_template = options.chat_template;
  how.existing = options.replace ? ExistingFolder::kReplace : ExistingFolder::kRefuse;
  ThreadPool threads;
  const bool on_cpu = parameters_.device().is_cpu();
  ParameterSet host = on_cpu ? parameters_ : parameters_.to(parameters_.dtype(), at::kCPU);
  for (Parameter& parameter : host.list()) {
    parameter.tensor = gather_experts(mesh_, parameter.tensor.detach(), parameter.total_rows);
    parameter.total_rows = 0;
  }
  if (!mesh_.is_first()) {
    return;
  }
  save_model_folder(folder, spec_.config, spec_.weights, buffers_of(host), &source, how, threads);
}

}  // namespace phalanx
