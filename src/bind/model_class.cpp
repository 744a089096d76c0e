// The C++ model as a class for Python: torch.classes.phalanx.CausalLM. It takes and gives what include/phalanx/auto_model.h does.
#include "core/error.h"
#include "models/spec/model_spec.h"
#include "phalanx/auto_model.h"

#include <torch/custom_class.h>
#include <torch/library.h>

namespace phalanx {
namespace {

std::optional<at::ScalarType> dtype_from_text(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  fail<ConfigError>("dtype is \"", name, "\"; it must be auto, float32, float64 or bfloat16");
}

struct PythonCausalLM : torch::CustomClassHolder {
  PythonCausalLM(const std::string& model, const std::string& dtype, const std::string& experts,
                 std::optional<double> aux_loss_coef, at::Device device, bool read_weights)
      : model(AutoModelForCausalLM::from_pretrained(
            model, {dtype_from_text(dtype), experts, aux_loss_coef, device, read_weights})) {}

  c10::Dict<std::string, at::Tensor> parameters() {
    c10::Dict<std::string, at::Tensor> result;
    for (const auto& [name, tensor] : model.named_parameters()) {
      result.insert(name, tensor);
    }
    return result;
  }

  c10::Dict<std::string, at::Tensor> forward(const at::Tensor& tokens,
                                             const std::optional<at::Tensor>& labels,
                                             std::vector<std::int64_t> lengths,
                                             const std::optional<at::Tensor>& position_ids,
                                             std::vector<at::Tensor> routing) {
    const CausalLMOutput output = model.forward({tokens, labels.value_or(at::Tensor()), std::move(lengths),
                                                 position_ids.value_or(at::Tensor()), std::move(routing)});
    c10::Dict<std::string, at::Tensor> result;
    const std::pair<const char*, at::Tensor> fields[] = {{"loss", output.loss},
                                                         {"aux_loss", output.aux_loss},
                                                         {"correct", output.correct},
                                                         {"logits", output.logits}};
    for (const auto& [name, tensor] : fields) {
      if (tensor.defined()) {
        result.insert(name, tensor);
      }
    }
    return result;
  }

  void save_pretrained(const std::string& folder, std::int64_t max_shard_bytes) {
    model.save_pretrained(folder, static_cast<std::uint64_t>(max_shard_bytes));
  }

  AutoModelForCausalLM model;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.class_<PythonCausalLM>("CausalLM")
      .def(torch::init<std::string, std::string, std::string, std::optional<double>, at::Device, bool>(), "",
           {torch::arg("model"), torch::arg("dtype") = "auto", torch::arg("experts_implementation") = "auto",
            torch::arg("router_aux_loss_coef") = torch::arg::none(),
            torch::arg("device") = at::Device(at::kCPU), torch::arg("read_weights") = true})
      .def("parameters", &PythonCausalLM::parameters)
      .def("forward", &PythonCausalLM::forward, "",
           {torch::arg("tokens"), torch::arg("labels") = torch::arg::none(),
            torch::arg("lengths") = std::vector<std::int64_t>{},
            torch::arg("position_ids") = torch::arg::none(),
            torch::arg("routing") = std::vector<at::Tensor>{}})
      .def("save_pretrained", &PythonCausalLM::save_pretrained, "",
           {torch::arg("folder"), torch::arg("max_shard_bytes") = std::int64_t{5'000'000'000}});
  m.def("registered_families() -> str[]", [] { return registered_families(); });
}

}  // namespace phalanx
