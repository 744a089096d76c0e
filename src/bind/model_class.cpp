// The C++ model and its optimizer as classes for Python: torch.classes.phalanx.CausalLM and AdamW. They take and give what
// include/phalanx/auto_model.h and adamw.h do.
#include "core/error.h"
#include "models/spec/model_spec.h"
#include "phalanx/adamw.h"
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
                 std::optional<double> aux_loss_coef, at::Device device, bool read_weights,
                 const std::string& recompute, std::vector<std::string> groups)
      : model(AutoModelForCausalLM::from_pretrained(
            model, {dtype_from_text(dtype), experts, aux_loss_coef, recompute, device, read_weights,
                    std::move(groups)})) {}

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

struct PythonAdamW : torch::CustomClassHolder {
  PythonAdamW(c10::intrusive_ptr<PythonCausalLM> of, double learning_rate, double beta1, double beta2,
              double eps, double weight_decay, const std::string& states, bool in_backward, std::int64_t seed)
      : model(std::move(of)),
        optimizer(model->model, {learning_rate, beta1, beta2, eps, weight_decay, states, in_backward,
                                 static_cast<std::uint64_t>(seed)}) {}

  c10::intrusive_ptr<PythonCausalLM> model;  // kept alive
  AdamW optimizer;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.class_<PythonCausalLM>("CausalLM")
      .def(torch::init<std::string, std::string, std::string, std::optional<double>, at::Device, bool,
                       std::string, std::vector<std::string>>(),
           "",
           {torch::arg("model"), torch::arg("dtype") = "auto", torch::arg("experts_implementation") = "auto",
            torch::arg("router_aux_loss_coef") = torch::arg::none(),
            torch::arg("device") = at::Device(at::kCPU), torch::arg("read_weights") = true,
            torch::arg("recompute") = "none", torch::arg("groups") = std::vector<std::string>{}})
      .def("parameters", &PythonCausalLM::parameters)
      .def("forward", &PythonCausalLM::forward, "",
           {torch::arg("tokens"), torch::arg("labels") = torch::arg::none(),
            torch::arg("lengths") = std::vector<std::int64_t>{},
            torch::arg("position_ids") = torch::arg::none(),
            torch::arg("routing") = std::vector<at::Tensor>{}})
      .def("save_pretrained", &PythonCausalLM::save_pretrained, "",
           {torch::arg("folder"), torch::arg("max_shard_bytes") = std::int64_t{5'000'000'000}});
  m.class_<PythonAdamW>("AdamW")
      .def(torch::init<c10::intrusive_ptr<PythonCausalLM>, double, double, double, double, double,
                       std::string, bool, std::int64_t>(),
           "",
           {torch::arg("model"), torch::arg("learning_rate") = 1e-5, torch::arg("beta1") = 0.9,
            torch::arg("beta2") = 0.95, torch::arg("eps") = 1e-8, torch::arg("weight_decay") = 0.1,
            torch::arg("states") = "fp32", torch::arg("in_backward") = false,
            torch::arg("seed") = std::int64_t{0}})
      .def("step",
           [](const c10::intrusive_ptr<PythonAdamW>& self, double gradient_scale) {
             self->optimizer.step(gradient_scale);
           },
           "", {torch::arg("gradient_scale") = 1.0})
      .def("set_learning_rate",
           [](const c10::intrusive_ptr<PythonAdamW>& self, double learning_rate) {
             self->optimizer.set_learning_rate(learning_rate);
           })
      .def("gradient_norm",
           [](const c10::intrusive_ptr<PythonAdamW>& self) { return self->optimizer.gradient_norm(); });
  m.def("registered_families() -> str[]", [] { return registered_families(); });
}

}  // namespace phalanx
