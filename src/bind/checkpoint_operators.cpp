// Fills the parameters of a model that lives in Python from a checkpoint folder: the loader of the C++ model under another owner.
#include "core/error.h"
#include "core/thread_pool.h"
#include "models/parameter_set.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/model_spec.h"
#include "models/spec/weight_match.h"

#include <torch/library.h>

#include <algorithm>

namespace phalanx {
namespace {

std::vector<ParameterBuffer> buffers_of(const std::vector<std::string>& names, at::TensorList tensors) {
  PHALANX_CHECK(names.size() == tensors.size(), Error, "load_checkpoint: ", names.size(), " names for ",
                tensors.size(), " tensors");
  std::vector<ParameterBuffer> buffers;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    PHALANX_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(), Error, "load_checkpoint: ", names[i],
                  " is not contiguous on the CPU");
    buffers.push_back({names[i], to_dtype(tensor.scalar_type()), tensor.sizes().vec(), tensor.data_ptr()});
  }
  return buffers;
}

void check_names(const ModelSpec& spec, std::vector<std::string> names) {
  std::vector<std::string> expected;
  for (const ParameterSpec& parameter : spec.parameters) {
    expected.push_back(parameter.name);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(names.begin(), names.end());
  PHALANX_CHECK(names == expected, Error, "load_checkpoint: the model has ", names.size(),
                " parameters of other names than the ", expected.size(), " of ", spec.architecture);
}

// Reads the weights of `folder` into `tensors`, which belong to the parameters `names` of the model that `config` (the text of
// config.json) describes. -> names in the folder that fill nothing; whether the folder holds one tensor per expert.
// Throws before it reads anything when folder and model do not fit.
std::tuple<std::vector<std::string>, bool> load_checkpoint(const std::string& folder,
                                                           const std::string& config,
                                                           std::vector<std::string> names,
                                                           at::TensorList tensors) {
  const ModelSpec spec = make_model_spec(Json::parse(config, "the model's configuration"), folder);
  check_names(spec, names);
  const HfCheckpoint checkpoint(folder);
  const WeightMatch match = match_weights(spec.weights, checkpoint);
  bool released = true;
  for (std::size_t i = 0; i < match.forms.size(); ++i) {
    released = released && match.forms[i] == &spec.weights.rules[i].forms.front();
  }
  std::vector<std::string> unused;
  for (const StoredTensor& stored : match.carried) {
    unused.emplace_back(stored.info->name);
  }
  for (const std::string& name : spec.weights.ignored) {
    if (checkpoint.find(name) != nullptr) {
      unused.push_back(name);
    }
  }
  ThreadPool threads;
  load_parameters(spec.weights, checkpoint, buffers_of(names, tensors), threads);
  return {unused, released};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.def(
      "load_checkpoint(str folder, str config, str[] names, Tensor(a!)[] tensors) "
      "-> (str[] unused, bool one_tensor_per_expert)",
      load_checkpoint);
}

}  // namespace phalanx
