// Compiled without contraction of a * b + c: the places where torch.optim.AdamW rounds once (lerp, addcmul) call
// std::fma, all others round twice as it does.
#include "ops/adamw.h"
#include "ops/cpu/moments.h"
#include "ops/cpu/vectorize.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <array>
#include <bit>
#include <cmath>

namespace phalanx {
namespace {

using cpu::compute_t;

constexpr std::int64_t kChunk =
    8192;  // elements of one task; a multiple of a block of moments and of the 8 numbers of a random block

struct Chunk {
  std::size_t tensor;
  std::int64_t begin, end;
};

std::vector<Chunk> chunks_of(at::TensorList tensors) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::int64_t begin = 0; begin < tensors[i].numel(); begin += kChunk) {
      chunks.push_back({i, begin, std::min(tensors[i].numel(), begin + kChunk)});
    }
  }
  return chunks;
}

// Runs body(chunk) on torch's threads. Chunks are independent, so their distribution does not show in the result.
template <class Body>
void parallel_chunks(std::size_t count, const Body& body) {
  at::parallel_for(0, static_cast<std::int64_t>(count), 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      body(i);
    }
  });
}

// The factors of one parameter's step, in the precision of its states.
template <class C>
struct Factors {
  C decay;  // 1 - learning rate * weight decay
  C one_minus_beta1;
  C beta2, one_minus_beta2;
  C root_correction2;  // sqrt(1 - beta2^step)
  C eps;
  C minus_step_size;  // -learning rate / (1 - beta1^step)
  C gradient_scale;
};

template <class C, class G>
PHALANX_VECTORIZE void step_row(C* value, const G* gradient, C* exp_avg, C* exp_avg_sq,
                                const Factors<C>& given, std::int64_t count) {
  const Factors<C> f = given;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const C grad = static_cast<C>(gradient[i]) * f.gradient_scale;
    const C mean = std::fma(f.one_minus_beta1, grad - exp_avg[i], exp_avg[i]);
    const C square = std::fma(f.one_minus_beta2 * grad, grad, exp_avg_sq[i] * f.beta2);
    exp_avg[i] = mean;
    exp_avg_sq[i] = square;
    const C denominator = std::sqrt(square) / f.root_correction2 + f.eps;
    value[i] = value[i] * f.decay + f.minus_step_size * mean / denominator;
  }
}

PHALANX_VECTORIZE void widen(const at::BFloat16* from, float* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(from[i]);
  }
}

PHALANX_VECTORIZE void round_to_nearest(const float* from, at::BFloat16* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<at::BFloat16>(from[i]);
  }
}

// The moments of a chunk.
struct StoredMoments {
  at::Tensor exp_avg, exp_avg_sq;              // of the whole parameter
  at::Tensor exp_avg_scale, exp_avg_sq_scale;  // with 8-bit moments
  cpu::RandomRun random;
  Chunk chunk;

  void read(float* mean, float* square) const {
    if (exp_avg.scalar_type() == at::kBFloat16) {
      widen(at_chunk<at::BFloat16>(exp_avg), mean, count());
      widen(at_chunk<at::BFloat16>(exp_avg_sq), square, count());
    } else {
      cpu::read_codes<FirstMomentCode>(at_chunk<std::uint8_t>(exp_avg), scales(exp_avg_scale), mean, count());
      cpu::read_codes<SecondMomentCode>(at_chunk<std::uint8_t>(exp_avg_sq), scales(exp_avg_sq_scale), square,
                                        count());
    }
  }

  void write(const float* mean, const float* square) const {
    if (exp_avg.scalar_type() == at::kBFloat16) {
      cpu::round_stochastically(mean, at_chunk<at::BFloat16>(exp_avg), count(), random);
      cpu::round_stochastically(square, at_chunk<at::BFloat16>(exp_avg_sq), count(), random);
    } else {
      cpu::write_codes<FirstMomentCode>(mean, at_chunk<std::uint8_t>(exp_avg), scales(exp_avg_scale), count(),
                                        random);
      cpu::write_codes<SecondMomentCode>(square, at_chunk<std::uint8_t>(exp_avg_sq), scales(exp_avg_sq_scale),
                                         count(), random);
    }
  }

  template <class T>
  T* at_chunk(const at::Tensor& tensor) const {
    return tensor.mutable_data_ptr<T>() + chunk.begin;
  }
  std::uint8_t* scales(const at::Tensor& tensor) const {
    return tensor.mutable_data_ptr<std::uint8_t>() + chunk.begin / kMomentBlock;
  }
  std::int64_t count() const { return chunk.end - chunk.begin; }
};

template <class C>
void step_values(C* value, const at::Tensor& gradient, C* mean, C* square, const Factors<C>& factors,
                 const Chunk& chunk) {
  const std::int64_t count = chunk.end - chunk.begin;
  if (gradient.scalar_type() == at::kBFloat16) {
    step_row(value, gradient.const_data_ptr<at::BFloat16>() + chunk.begin, mean, square, factors, count);
  } else {
    step_row(value, gradient.const_data_ptr<C>() + chunk.begin, mean, square, factors, count);
  }
}

// `value` points at the first element of the chunk.
template <class C>
void step_chunk(C* value, const at::Tensor& gradient, const StoredMoments& moments,
                const Factors<C>& factors) {
  if (moments.exp_avg.scalar_type() == c10::CppTypeToScalarType<C>::value) {
    step_values(value, gradient, moments.at_chunk<C>(moments.exp_avg),
                moments.at_chunk<C>(moments.exp_avg_sq), factors, moments.chunk);
  } else if constexpr (std::is_same_v<C, float>) {
    std::array<float, kChunk> mean, square;
    moments.read(mean.data(), square.data());
    step_values(value, gradient, mean.data(), square.data(), factors, moments.chunk);
    moments.write(mean.data(), square.data());
  }
}

template <class C>
Factors<C> make_factors(double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                        double gradient_scale, double weight_decay) {
  const auto count = static_cast<double>(step);
  return {static_cast<C>(1.0 - learning_rate * weight_decay),
          static_cast<C>(1.0 - beta1),
          static_cast<C>(beta2),
          static_cast<C>(1.0 - beta2),
          static_cast<C>(std::pow(1.0 - std::pow(beta2, count), 0.5)),
          static_cast<C>(eps),
          static_cast<C>(-(learning_rate / (1.0 - std::pow(beta1, count)))),
          static_cast<C>(gradient_scale)};
}

template <class T>
PHALANX_VECTORIZE double sum_of_squares(const T* values, std::int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(static_cast<compute_t<T>>(values[i]));
    sum += value * value;
  }
  return sum;
}

}  // namespace

void adamw_cpu_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList exp_avg_scale, at::TensorList exp_avg_sq_scale,
                at::TensorList master, at::ArrayRef<double> weight_decay, at::IntArrayRef positions,
                double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                double gradient_scale, bool stochastic_rounding, std::int64_t seed) {
  const std::vector<Chunk> chunks = chunks_of(parameters);
  parallel_chunks(chunks.size(), [&](std::int64_t index) {
    const Chunk& chunk = chunks[index];
    const std::size_t i = chunk.tensor;
    const at::Tensor& parameter = parameters[i];
    const std::int64_t count = chunk.end - chunk.begin;
    const cpu::RandomRun random{static_cast<std::uint64_t>(seed), adamw_random_stream(step, positions[i]),
                                chunk.begin};
    StoredMoments moments{exp_avg[i], exp_avg_sq[i], {}, {}, random, chunk};
    if (!exp_avg_scale.empty()) {
      moments.exp_avg_scale = exp_avg_scale[i];
      moments.exp_avg_sq_scale = exp_avg_sq_scale[i];
    }
    moments.random.stream |= kMomentStream;
    const auto run = [&]<class C>(C* value) {
      const auto factors =
          make_factors<C>(learning_rate, beta1, beta2, eps, step, gradient_scale, weight_decay[i]);
      step_chunk(value, gradients[i], moments, factors);
    };
    if (parameter.scalar_type() == at::kDouble) {
      run(parameter.mutable_data_ptr<double>() + chunk.begin);
    } else if (parameter.scalar_type() == at::kFloat) {
      run(parameter.mutable_data_ptr<float>() + chunk.begin);
    } else {
      auto* rounded = parameter.mutable_data_ptr<at::BFloat16>() + chunk.begin;
      if (!stochastic_rounding) {
        float* value = master[i].mutable_data_ptr<float>() + chunk.begin;
        run(value);
        round_to_nearest(value, rounded, count);
      } else {
        std::array<float, kChunk> value;
        widen(rounded, value.data(), count);
        run(value.data());
        cpu::round_stochastically(value.data(), rounded, count, random);
      }
    }
  });
}

at::Tensor global_norm_cpu(at::TensorList tensors) {
  const std::vector<Chunk> chunks = chunks_of(tensors);
  std::vector<at::Tensor> whole(tensors.begin(), tensors.end());
  bool wide = false;
  for (at::Tensor& tensor : whole) {
    tensor = tensor.contiguous();
    wide = wide || tensor.scalar_type() == at::kDouble;
  }
  std::vector<double> sums(chunks.size());
  parallel_chunks(chunks.size(), [&](std::int64_t index) {
    const auto [i, begin, end] = chunks[index];
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, whole[i].scalar_type(), "global_norm", [&] {
      sums[index] = sum_of_squares(whole[i].const_data_ptr<scalar_t>() + begin, end - begin);
    });
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return at::full({}, std::sqrt(total), tensors[0].options().dtype(wide ? at::kDouble : at::kFloat));
}

}  // namespace phalanx
