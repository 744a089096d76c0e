#include "core/error.h"
#include "ops/cpu/vectorize.h"
#include "ops/permute.h"

#include <ATen/Dispatch.h>

#include <cstring>
#include <vector>

namespace phalanx {
namespace {

using cpu::compute_t;

template <class T>
PHALANX_VECTORIZE void scale_row(const T* x, compute_t<T> weight, T* out, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<T>(weight * static_cast<compute_t<T>>(x[i]));
  }
}

template <class T>
PHALANX_VECTORIZE void add_row(const T* x, compute_t<T> weight, compute_t<T>* sum, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    sum[i] += weight * static_cast<compute_t<T>>(x[i]);
  }
}

template <class T>
PHALANX_VECTORIZE void round_row(const compute_t<T>* sum, T* out, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<T>(sum[i]);
  }
}

// Both optional: nullptr stands for weights of 1 and for no residual.
template <class T>
void combine_token(const T* values, const std::int32_t* rows, const T* weights, const T* residual,
                   std::int64_t top_k, std::int64_t width, std::vector<compute_t<T>>& sum, T* out) {
  std::fill(sum.begin(), sum.end(), compute_t<T>(0));
  if (residual != nullptr) {
    add_row(residual, compute_t<T>(1), sum.data(), width);
  }
  for (std::int64_t k = 0; k < top_k; ++k) {
    const auto weight = weights == nullptr ? compute_t<T>(1) : static_cast<compute_t<T>>(weights[k]);
    add_row(values + rows[k] * width, weight, sum.data(), width);
  }
  round_row(sum.data(), out, width);
}

template <class T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

at::Tensor contiguous_or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? tensor->contiguous() : at::Tensor();
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_cpu(const at::Tensor& indices_in,
                                                                               std::int64_t num_experts) {
  const at::Tensor indices = indices_in.contiguous();
  const std::int64_t choice_count = indices.numel();
  const auto* expert_of = indices.const_data_ptr<std::int32_t>();
  std::vector<std::int32_t> next(num_experts, 0);  // counts, then the next free row of each expert
  for (std::int64_t choice = 0; choice < choice_count; ++choice) {
    const std::int32_t expert = expert_of[choice];
    PHALANX_CHECK(expert >= 0 && expert < num_experts, Error, "group_by_expert: token ",
                  choice / indices.size(1), " is routed to expert ", expert, "; there are ", num_experts);
    ++next[expert];
  }
  at::Tensor counts = indices.new_empty({num_experts}, indices.options().dtype(at::kLong));
  at::Tensor ends = indices.new_empty({num_experts});
  std::int32_t begin = 0;
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    const std::int32_t count = next[expert];
    counts.mutable_data_ptr<std::int64_t>()[expert] = count;
    next[expert] = begin;
    begin += count;
    ends.mutable_data_ptr<std::int32_t>()[expert] = begin;
  }
  at::Tensor choices = indices.new_empty({choice_count});
  at::Tensor rows = indices.new_empty(indices.sizes());
  auto* choices_data = choices.mutable_data_ptr<std::int32_t>();
  auto* rows_data = rows.mutable_data_ptr<std::int32_t>();
  for (std::int64_t choice = 0; choice < choice_count; ++choice) {
    const std::int32_t row = next[expert_of[choice]]++;
    choices_data[row] = static_cast<std::int32_t>(choice);
    rows_data[choice] = row;
  }
  return {counts, ends, choices, rows};
}

at::Tensor gather_rows_cpu(const at::Tensor& x_in, const at::Tensor& rows,
                           const std::optional<at::Tensor>& weights_in) {
  const at::Tensor x = x_in.contiguous();
  const at::Tensor weights = contiguous_or_undefined(weights_in);
  const std::int64_t tokens = rows.size(0), top_k = rows.size(1), width = x.size(1);
  at::Tensor out = x.new_empty({rows.numel(), width});
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "gather_rows", [&] {
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* row = rows.const_data_ptr<std::int32_t>();
    const auto* weight = data_or_null<scalar_t>(weights);
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(tokens, top_k * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t choice = begin * top_k; choice < end * top_k; ++choice) {
        const auto* source = x_data + choice / top_k * width;
        auto* target = out_data + row[choice] * width;
        if (weight == nullptr) {
          std::memcpy(target, source, width * sizeof(scalar_t));
        } else {
          scale_row(source, static_cast<compute_t<scalar_t>>(weight[choice]), target, width);
        }
      }
    });
  });
  return out;
}

at::Tensor combine_rows_cpu(const at::Tensor& values_in, const at::Tensor& rows,
                            const std::optional<at::Tensor>& weights_in,
                            const std::optional<at::Tensor>& residual_in) {
  const at::Tensor values = values_in.contiguous();
  const at::Tensor weights = contiguous_or_undefined(weights_in);
  const at::Tensor residual = contiguous_or_undefined(residual_in);
  const std::int64_t tokens = rows.size(0), top_k = rows.size(1), width = values.size(1);
  at::Tensor out = values.new_empty({tokens, width});
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, values.scalar_type(), "combine_rows", [&] {
    const auto* values_data = values.const_data_ptr<scalar_t>();
    const auto* rows_data = rows.const_data_ptr<std::int32_t>();
    const auto* weights_data = data_or_null<scalar_t>(weights);
    const auto* residual_data = data_or_null<scalar_t>(residual);
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(tokens, (top_k + 1) * width, [&](std::int64_t begin, std::int64_t end) {
      std::vector<compute_t<scalar_t>> sum(width);
      for (std::int64_t token = begin; token < end; ++token) {
        combine_token(values_data, rows_data + token * top_k,
                      weights_data == nullptr ? nullptr : weights_data + token * top_k,
                      residual_data == nullptr ? nullptr : residual_data + token * width, top_k, width, sum,
                      out_data + token * width);
      }
    });
  });
  return out;
}

}  // namespace phalanx
