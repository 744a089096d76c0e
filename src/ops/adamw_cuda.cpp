#include "kernels/adamw/adamw.h"
#include "ops/adamw.h"
#include "ops/cuda/launch.h"
#include "ops/sequence_layout.h"

#include <ATen/ops/from_blob.h>

#include <cmath>

namespace phalanx {
namespace {

// The entries of all tensors in the order of their chunks, on their way to the device.
template <class Entry>
class EntryTable {
 public:
  void add(Entry entry, const at::Tensor& tensor) {
    entry.span = {tensor.numel(), chunks_};
    chunks_ += kernels::tensor_chunks(tensor.numel());
    entries_.push_back(entry);
  }
  int count() const { return static_cast<int>(entries_.size()); }
  std::int64_t chunks() const { return chunks_; }

  // As bytes. The copy does not make the host wait.
  at::Tensor on(at::Device device) {
    const auto bytes = static_cast<std::int64_t>(entries_.size() * sizeof(Entry));
    return upload(at::from_blob(entries_.data(), {bytes}, at::TensorOptions().dtype(at::kByte)), device);
  }

 private:
  std::vector<Entry> entries_;
  std::int64_t chunks_ = 0;
};

kernels::AdamWValue value_of(const at::Tensor& parameter, bool stochastic_rounding) {
  if (parameter.scalar_type() == at::kFloat) {
    return kernels::AdamWValue::kFp32;
  }
  return stochastic_rounding ? kernels::AdamWValue::kBf16Stochastic : kernels::AdamWValue::kBf16Master;
}

kernels::AdamWMoments moments_of(const at::Tensor& exp_avg) {
  switch (exp_avg.scalar_type()) {
    case at::kBFloat16:
      return kernels::AdamWMoments::kBf16;
    case at::kByte:
      return kernels::AdamWMoments::kEightBit;
    default:
      return kernels::AdamWMoments::kFp32;
  }
}

}  // namespace

void adamw_cuda_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                 at::TensorList exp_avg_sq, at::TensorList exp_avg_scale, at::TensorList exp_avg_sq_scale,
                 at::TensorList master, at::ArrayRef<double> weight_decay, at::IntArrayRef positions,
                 double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                 double gradient_scale, bool stochastic_rounding, std::int64_t seed) {
  const cuda::Launch launch(parameters[0]);
  EntryTable<kernels::AdamWTensor> table;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    cuda::element_of(parameters[i], "adamw");
    kernels::AdamWTensor entry;
    entry.parameter = parameters[i].mutable_data_ptr();
    entry.gradient = gradients[i].const_data_ptr();
    entry.exp_avg = exp_avg[i].mutable_data_ptr();
    entry.exp_avg_sq = exp_avg_sq[i].mutable_data_ptr();
    entry.exp_avg_scale = exp_avg_scale.empty() ? nullptr : exp_avg_scale[i].mutable_data_ptr<std::uint8_t>();
    entry.exp_avg_sq_scale =
        exp_avg_sq_scale.empty() ? nullptr : exp_avg_sq_scale[i].mutable_data_ptr<std::uint8_t>();
    entry.master = master.empty() ? nullptr : master[i].mutable_data_ptr<float>();
    entry.stream = adamw_random_stream(step, positions[i]);
    entry.moment_stream = entry.stream | kMomentStream;
    entry.decay = static_cast<float>(1.0 - learning_rate * weight_decay[i]);
    entry.value = value_of(parameters[i], stochastic_rounding);
    entry.gradient_element = cuda::element_of(gradients[i], "adamw");
    table.add(entry, parameters[i]);
  }
  const at::Tensor entries = table.on(parameters[0].device());
  const auto count = static_cast<double>(step);
  const auto root_correction2 = static_cast<float>(std::pow(1.0 - std::pow(beta2, count), 0.5));
  kernels::AdamWParams params;
  params.tensors = reinterpret_cast<const kernels::AdamWTensor*>(entries.const_data_ptr());
  params.tensor_count = table.count();
  params.chunks = table.chunks();
  params.factors = {static_cast<float>(1.0 - beta1),
                    static_cast<float>(beta2),
                    static_cast<float>(1.0 - beta2),
                    root_correction2,
                    1.0f / root_correction2,
                    static_cast<float>(eps),
                    static_cast<float>(-(learning_rate / (1.0 - std::pow(beta1, count)))),
                    static_cast<float>(gradient_scale)};
  params.seed = static_cast<std::uint64_t>(seed);
  params.moments = moments_of(exp_avg[0]);
  kernels::adamw(params, launch.stream());
}

at::Tensor global_norm_cuda(at::TensorList tensors) {
  const cuda::Launch launch(tensors[0]);
  std::vector<at::Tensor> whole(tensors.begin(), tensors.end());
  EntryTable<kernels::NormTensor> table;
  for (at::Tensor& tensor : whole) {
    tensor = tensor.contiguous();
    kernels::NormTensor entry;
    entry.values = tensor.const_data_ptr();
    entry.element = cuda::element_of(tensor, "global_norm");
    table.add(entry, tensor);
  }
  const at::Tensor entries = table.on(tensors[0].device());
  at::Tensor norm = whole[0].new_empty({}, whole[0].options().dtype(at::kFloat));
  at::Tensor partials = norm.new_empty({table.chunks()}, norm.options().dtype(at::kDouble));
  kernels::GlobalNormParams params;
  params.tensors = reinterpret_cast<const kernels::NormTensor*>(entries.const_data_ptr());
  params.tensor_count = table.count();
  params.chunks = table.chunks();
  params.partials = partials.mutable_data_ptr<double>();
  params.norm = norm.mutable_data_ptr<float>();
  kernels::global_norm(params, launch.stream());
  return norm;
}

}  // namespace phalanx
