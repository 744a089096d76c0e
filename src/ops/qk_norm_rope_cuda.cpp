#include "kernels/common/column_sum.h"
#include "kernels/rope/qk_norm_rope.h"
#include "ops/cuda/launch.h"
#include "ops/qk_norm_rope.h"

namespace phalanx {
namespace {

// x [T, heads, d] with dense heads; the distance between tokens is free.
at::Tensor dense_heads(const at::Tensor& x) {
  return x.stride(2) == 1 && x.stride(1) == x.size(2) ? x : x.contiguous();
}

// The tables of a batch, as the kernels read them.
struct Angles {
  Angles(const at::Tensor& cos_in, const at::Tensor& sin_in)
      : cos(cuda::operand(cos_in, at::kFloat)), sin(cuda::operand(sin_in, at::kFloat)) {}
  kernels::RopeAngles params() const { return {cos.const_data_ptr<float>(), sin.const_data_ptr<float>()}; }
  at::Tensor cos, sin;  // [T, D/2]
};

kernels::QkShape shape_of(const at::Tensor& q, const at::Tensor& cos, double eps) {
  return {q.size(0), static_cast<int>(q.size(2)), static_cast<int>(cos.size(1)), static_cast<float>(eps),
          cuda::element_of(q, "qk_norm_rope")};
}

// q or k on its way through the kernels; owns what they read and write.
struct Heads {
  Heads(const at::Tensor& x_in, const OptionalTensor& weight_in)
      : x(dense_heads(x_in)), weight(cuda::operand(weight_in, x.scalar_type())) {}

  kernels::HeadsForward forward() {
    y = x.new_empty(x.sizes());
    return {x.const_data_ptr(), x.stride(0), cuda::data_or_null(weight), y.mutable_data_ptr(),
            static_cast<int>(x.size(1))};
  }

  // grad_x [T, heads * d]: columns of a wider tensor.
  kernels::HeadsBackward backward(const at::Tensor& grad_y_in, const at::Tensor& grad_x) {
    grad_y = cuda::operand(grad_y_in, x.scalar_type());
    const int blocks = kernels::qk_norm_rope_backward_blocks(x.size(0));
    if (weight.defined()) {
      partials = weight.new_empty({blocks, x.size(2)}, weight.options().dtype(at::kFloat));
    }
    return {grad_y.const_data_ptr(),
            x.const_data_ptr(),
            x.stride(0),
            cuda::data_or_null(weight),
            grad_x.mutable_data_ptr(),
            grad_x.stride(0),
            weight.defined() ? partials.mutable_data_ptr<float>() : nullptr,
            static_cast<int>(x.size(1))};
  }

  // After backward -> [d], undefined without a norm.
  at::Tensor grad_weight(cudaStream_t stream) const {
    if (!weight.defined()) {
      return {};
    }
    at::Tensor grad = weight.new_empty(weight.sizes());
    kernels::column_sum({partials.const_data_ptr<float>(), grad.mutable_data_ptr(), partials.size(0),
                         grad.numel(), cuda::element_of(grad, "qk_norm_rope")},
                        stream);
    return grad;
  }

  at::Tensor x, weight;
  at::Tensor y;
  at::Tensor grad_y, partials;
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_cuda(const at::Tensor& q_in, const at::Tensor& k_in,
                                                             const OptionalTensor& q_norm,
                                                             const OptionalTensor& k_norm,
                                                             const at::Tensor& cos, const at::Tensor& sin,
                                                             double eps) {
  const cuda::Launch launch(q_in);
  const Angles angles(cos, sin);
  Heads q(q_in, q_norm), k(k_in, k_norm);
  kernels::qk_norm_rope_forward({shape_of(q.x, angles.cos, eps), angles.params(), q.forward(), k.forward()},
                                launch.stream());
  return {q.y, k.y};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_cuda(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q_in,
    const at::Tensor& k_in, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor& cos,
    const at::Tensor& sin, double eps) {
  const cuda::Launch launch(q_in);
  const Angles angles(cos, sin);
  Heads q(q_in, q_norm), k(k_in, k_norm);
  const std::int64_t tokens = q_in.size(0), head = q_in.size(2);
  const std::int64_t q_width = q_in.size(1) * head, k_width = k_in.size(1) * head,
                     v_width = grad_v.size(1) * head;
  at::Tensor grad_qkv = q_in.new_empty({tokens, q_width + k_width + v_width});
  if (v_width > 0) {
    grad_qkv.narrow(1, q_width + k_width, v_width).copy_(grad_v.reshape({tokens, v_width}));
  }
  kernels::qk_norm_rope_backward(
      {shape_of(q.x, angles.cos, eps), angles.params(), q.backward(grad_q, grad_qkv.narrow(1, 0, q_width)),
       k.backward(grad_k, grad_qkv.narrow(1, q_width, k_width))},
      launch.stream());
  return {grad_qkv, q.grad_weight(launch.stream()), k.grad_weight(launch.stream())};
}

}  // namespace phalanx
