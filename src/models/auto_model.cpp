#include "phalanx/auto_model.h"

#include "core/error.h"
#include "models/auto_model_impl.h"
#include "parallel/all_to_all.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

AutoModelForCausalLM::AutoModelForCausalLM(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AutoModelForCausalLM::~AutoModelForCausalLM() = default;
AutoModelForCausalLM::AutoModelForCausalLM(AutoModelForCausalLM&&) noexcept = default;
AutoModelForCausalLM& AutoModelForCausalLM::operator=(AutoModelForCausalLM&&) noexcept = default;

AutoModelForCausalLM AutoModelForCausalLM::from_pretrained(const std::string& model,
                                                           const LoadOptions& options) {
  PHALANX_CHECK(options.groups.empty() || options.groups.size() == 3, ConfigError, "groups has ",
                options.groups.size(), " names; give three, or none for one rank");
  const Mesh mesh =
      options.groups.empty() ? Mesh() : make_mesh(options.groups[0], options.groups[1], options.groups[2]);
  CausalLM loaded = options.read_weights
                        ? CausalLM::from_pretrained(model, options.dtype, options.device, mesh)
                        : CausalLM::without_weights(model, options.dtype, options.device, mesh);
  const double coefficient = options.router_aux_loss_coef.value_or(loaded.spec().router_aux_loss_coef);
  return AutoModelForCausalLM(std::make_unique<Impl>(
      Impl{std::move(loaded), experts_implementation_from_name(options.experts_implementation), coefficient,
           recompute_from_name(options.recompute), make_dispatcher(mesh)}));
}

CausalLMOutput AutoModelForCausalLM::forward(const CausalLMInput& input) const {
  const ModelSpec& spec = impl_->model.spec();
  const ParameterSet& parameters = impl_->model.parameters();
  SequenceLayout layout = layout_from_lengths(
      input.lengths.empty() ? std::vector<std::int64_t>{input.tokens.numel()} : input.lengths,
      parameters.device());
  if (input.position_ids.defined()) {
    layout.position_ids = input.position_ids.to(parameters.device());
  }
  CausalLMOutput output;
  if (!input.labels.defined()) {
    const at::Tensor hidden =
        decoder_forward(spec, parameters, input.tokens, layout, impl_->decoder_options(input.routing)).hidden;
    output.logits = hidden.matmul(head_weight(spec, parameters).t());
    return output;
  }
  LossOptions options;
  options.decoder = impl_->decoder_options(input.routing);
  options.aux_loss_coef = impl_->aux_loss_coef;
  options.loss_divisor = std::max(1.0, input.labels.ne(-100).sum().item<double>());
  LossOutput loss = decoder_loss(spec, parameters, input.tokens, input.labels, layout, options);
  output.loss = loss.objective;
  output.aux_loss = loss.aux_loss;
  output.correct = loss.correct;
  return output;
}

std::vector<std::pair<std::string, at::Tensor>> AutoModelForCausalLM::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const Parameter& parameter : impl_->model.parameters().list()) {
    if (parameter.trained) {
      result.emplace_back(parameter.name, parameter.tensor);
    }
  }
  return result;
}

void AutoModelForCausalLM::save_pretrained(const std::string& folder, std::uint64_t max_shard_bytes) const {
  SaveOptions options;
  options.max_shard_bytes = max_shard_bytes;
  impl_->model.save_pretrained(folder, options);
}

}  // namespace phalanx
