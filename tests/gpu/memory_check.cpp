// Runs the memory-bound kernels without torch, for compute-sanitizer: every array is an allocation of its own of exactly its size,
// so that an access past an end is seen. Shapes are those at which the kernels change their way of working. Fails where a launch
// fails or a result is not a finite number.
#include "core/error.h"
#include "core/moment_code.h"
#include "kernels/adamw/adamw.h"
#include "kernels/common/column_sum.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/permute/permute.h"
#include "kernels/rope/qk_norm_rope.h"
#include "kernels/swiglu/swiglu.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace phalanx::kernels {
namespace {

constexpr cudaStream_t kStream = nullptr;

void check(cudaError_t status, const char* call) {
  PHALANX_CHECK(status == cudaSuccess, CudaError, call, ": ", cudaGetErrorString(status));
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }

  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  void write(const void* source) {
    check(cudaMemcpy(data_, source, bytes_, cudaMemcpyHostToDevice), "write");
  }
  void read(void* target) const { check(cudaMemcpy(target, data_, bytes_, cudaMemcpyDeviceToHost), "read"); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

std::size_t size_of(Element element) { return element == Element::kBf16 ? 2 : 4; }

// Values of one element type, random or, for results, NaN until written.
class Values {
 public:
  Values(std::int64_t count, Element element, bool random)
      : count_(static_cast<std::size_t>(count)), element_(element), memory_(count_ * size_of(element)) {
    static std::mt19937 generator(7);
    std::uniform_real_distribution<float> draw(-2.0f, 2.0f);
    std::vector<float> wide(count_, std::numeric_limits<float>::quiet_NaN());
    for (float& value : wide) {
      value = random ? draw(generator) : value;
    }
    if (element == Element::kFp32) {
      memory_.write(wide.data());
      return;
    }
    std::vector<std::uint16_t> narrow(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &wide[i], sizeof(bits));
      narrow[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    memory_.write(narrow.data());
  }

  template <class T = void>
  T* data() const {
    return memory_.data<T>();
  }

  void expect_finite(const char* name) const {
    std::vector<char> bytes(count_ * size_of(element_));
    memory_.read(bytes.data());
    for (std::size_t i = 0; i < count_; ++i) {
      std::uint32_t bits = 0;
      if (element_ == Element::kFp32) {
        std::memcpy(&bits, &bytes[4 * i], 4);
      } else {
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, &bytes[2 * i], 2);
      }
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      PHALANX_CHECK(std::isfinite(value), Error, name, ": value ", i, " of ", count_, " is ", value);
    }
  }

 private:
  std::size_t count_;
  Element element_;
  Memory memory_;
};

Values random(std::int64_t count, Element element) { return {count, element, true}; }
Values result(std::int64_t count, Element element) { return {count, element, false}; }

template <class T>
Memory copy_of(const std::vector<T>& values) {
  Memory memory(values.size() * sizeof(T));
  memory.write(values.data());
  return memory;
}

void rms_norm(std::int64_t rows, std::int64_t width, Element element) {
  const Values x = random(rows * width, element), weight = random(width, element);
  const Values grad_y = random(rows * width, element), around = random(rows * width, element);
  const Values y = result(rows * width, element), grad_x = result(rows * width, element);
  const Values rstd = result(rows, Element::kFp32), weight_grad = result(width, element);
  RmsNormBackwardParams backward{grad_y.data(), x.data(),      weight.data(), rstd.data<float>(),
                                 around.data(), grad_x.data(), nullptr,       rows,
                                 width,         element};
  const int blocks = rms_norm_backward_blocks(backward);
  const Values partials = result(blocks * width, Element::kFp32);
  backward.partials = partials.data<float>();
  rms_norm_forward({x.data(), weight.data(), y.data(), rstd.data<float>(), rows, width, 1e-6f, element},
                   kStream);
  rms_norm_backward(backward, kStream);
  column_sum({partials.data<float>(), weight_grad.data(), blocks, width, element}, kStream);
  y.expect_finite("rms_norm y");
  grad_x.expect_finite("rms_norm grad_x");
  weight_grad.expect_finite("rms_norm grad_weight");
}

// q and k as the first columns of their fused product with v.
void qk_norm_rope(std::int64_t tokens, int heads, int kv_heads, int size, int half_rotary, Element element) {
  const std::int64_t stride = (heads + 2 * kv_heads) * size;
  const std::int64_t q_values = tokens * heads * size, k_values = tokens * kv_heads * size;
  const QkShape shape{tokens, size, half_rotary, 1e-6f, element};
  const Values fused = random(tokens * stride, element), grad_fused = random(tokens * stride, element);
  const Values cos = random(tokens * half_rotary, Element::kFp32),
               sin = random(tokens * half_rotary, Element::kFp32);
  const RopeAngles angles{cos.data<float>(), sin.data<float>()};
  const Values q_weight = random(size, element), k_weight = random(size, element);
  const Values q = result(q_values, element), k = result(k_values, element);
  const Values grad_q = random(q_values, element), grad_k = random(k_values, element);
  const int blocks = qk_norm_rope_backward_blocks(tokens);
  const Values q_partials = result(blocks * size, Element::kFp32);
  const Values k_partials = result(blocks * size, Element::kFp32);
  const auto at = [&](const Values& values, std::int64_t column) {
    return values.data<char>() + column * static_cast<std::int64_t>(size_of(element));
  };
  const std::int64_t k_column = heads * size;
  qk_norm_rope_forward({shape,
                        angles,
                        {fused.data(), stride, q_weight.data(), q.data(), heads},
                        {at(fused, k_column), stride, k_weight.data(), k.data(), kv_heads}},
                       kStream);
  qk_norm_rope_backward({shape,
                         angles,
                         {grad_q.data(), fused.data(), stride, q_weight.data(), grad_fused.data(), stride,
                          q_partials.data<float>(), heads},
                         {grad_k.data(), at(fused, k_column), stride, k_weight.data(),
                          at(grad_fused, k_column), stride, k_partials.data<float>(), kv_heads}},
                        kStream);
  q.expect_finite("qk_norm_rope q");
  k.expect_finite("qk_norm_rope k");
  grad_fused.expect_finite("qk_norm_rope grad_qk");
  q_partials.expect_finite("qk_norm_rope grad_q_norm");
  k_partials.expect_finite("qk_norm_rope grad_k_norm");
}

std::vector<std::int32_t> reversed(std::int64_t count) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<std::int32_t>(numbers.size() - 1 - i);
  }
  return numbers;
}

void swiglu(std::int64_t rows, std::int64_t width, Element element) {
  const Values z = random(rows * 2 * width, element), grad_a = random(rows * width, element);
  const Values a = result(rows * width, element), again = result(rows * width, element);
  const Values grad_z = result(rows * 2 * width, element);
  const Values weights = random(rows, element), grad_weights = result(rows, Element::kFp32);
  const Memory choices = copy_of(reversed(rows));
  swiglu_forward({z.data(), a.data(), rows, width, element}, kStream);
  swiglu_backward({grad_a.data(), z.data(), grad_z.data(), again.data(), rows, width, element}, kStream);
  weigh_activation({again.data(), grad_a.data(), weights.data(), choices.data<std::int32_t>(),
                    grad_weights.data<float>(), rows, width, element},
                   kStream);
  a.expect_finite("swiglu a");
  grad_z.expect_finite("swiglu grad_z");
  again.expect_finite("weigh_activation");
  grad_weights.expect_finite("weigh_activation grad_weights");
}

void permute(std::int64_t tokens, int top_k, int experts, std::int64_t width, Element element) {
  const std::int64_t count = tokens * top_k;
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(experts));
  }
  const Memory indices = copy_of(chosen), counts(static_cast<std::size_t>(experts) * 8);
  const Memory ends(static_cast<std::size_t>(experts) * 4), choices(chosen.size() * 4),
      rows(chosen.size() * 4);
  const Memory workspace(static_cast<std::size_t>(group_by_expert_workspace(count, experts)) * 4);
  const Values x = random(tokens * width, element), weights = random(count, element);
  const Values gathered = result(count * width, element), combined = result(tokens * width, element);
  group_by_expert({indices.data<std::int32_t>(), counts.data<std::int64_t>(), ends.data<std::int32_t>(),
                   choices.data<std::int32_t>(), rows.data<std::int32_t>(), workspace.data<std::int32_t>(),
                   count, experts},
                  kStream);
  gather_rows(
      {x.data(), rows.data<std::int32_t>(), weights.data(), gathered.data(), tokens, width, top_k, element},
      kStream);
  combine_rows({gathered.data(), rows.data<std::int32_t>(), weights.data(), x.data(), combined.data(), tokens,
                width, top_k, element},
               kStream);
  gathered.expect_finite("gather_rows");
  combined.expect_finite("combine_rows");
}

void cross_entropy(std::int64_t rows, std::int64_t vocab, Element element) {
  const Values logits = random(rows * vocab, element), weights = random(rows, Element::kFp32);
  const Values loss = result(rows, Element::kFp32), entropy = result(rows, Element::kFp32);
  const Memory labels = copy_of(std::vector<std::int64_t>(static_cast<std::size_t>(rows), vocab - 1));
  const Memory correct(static_cast<std::size_t>(rows));
  cross_entropy_rows({logits.data(), labels.data<std::int64_t>(), weights.data<float>(), loss.data<float>(),
                      correct.data<bool>(), entropy.data<float>(), rows, vocab, true, element},
                     kStream);
  logits.expect_finite("cross_entropy gradient");
  loss.expect_finite("cross_entropy loss");
  entropy.expect_finite("cross_entropy entropy");
}

void optimizer(AdamWValue value, Element gradient_element, AdamWMoments moments) {
  const std::vector<std::int64_t> sizes = {1, 31, 8 * 96, 40003, 70000};
  const Element parameter_element = value == AdamWValue::kFp32 ? Element::kFp32 : Element::kBf16;
  std::vector<Values> arrays;
  std::vector<AdamWTensor> entries;
  std::vector<NormTensor> norms;
  const auto add = [&](std::int64_t size, Element element) {
    arrays.push_back(random(size, element));
    return arrays.back().data();
  };
  std::vector<Memory> stored;
  const auto zeros = [&](std::size_t bytes) {
    stored.emplace_back(bytes);
    check(cudaMemset(stored.back().data<void>(), 0, bytes), "cudaMemset");
    return stored.back().data<void>();
  };
  std::int64_t chunks = 0;
  for (const std::int64_t size : sizes) {
    const TensorSpan span{size, chunks};
    AdamWTensor entry{};
    entry.span = span;
    entry.parameter = add(size, parameter_element);
    entry.gradient = add(size, gradient_element);
    // Zeros are moments in every format, and of the second kind, which has no negative ones.
    const std::size_t bytes = moments == AdamWMoments::kFp32 ? 4 : moments == AdamWMoments::kBf16 ? 2 : 1;
    const auto elements = static_cast<std::size_t>(size),
               blocks = static_cast<std::size_t>(moment_blocks(size));
    entry.exp_avg = zeros(bytes * elements);
    entry.exp_avg_sq = zeros(bytes * elements);
    entry.exp_avg_scale = static_cast<std::uint8_t*>(zeros(blocks));
    entry.exp_avg_sq_scale = static_cast<std::uint8_t*>(zeros(blocks));
    entry.master =
        value == AdamWValue::kBf16Master ? static_cast<float*>(add(size, Element::kFp32)) : nullptr;
    entry.decay = 0.999f;
    entry.value = value;
    entry.gradient_element = gradient_element;
    entries.push_back(entry);
    norms.push_back({span, entry.gradient, gradient_element});
    chunks += tensor_chunks(size);
  }
  const Memory table = copy_of(entries), norm_table = copy_of(norms);
  const Memory partials(static_cast<std::size_t>(chunks) * 8);
  const Values norm = result(1, Element::kFp32);
  const auto count = static_cast<int>(sizes.size());
  for (int step = 0; step < 2; ++step) {
    adamw({table.data<AdamWTensor>(),
           count,
           chunks,
           {0.1f, 0.95f, 0.05f, 0.2f, 5.0f, 1e-8f, -1e-3f, 1.0f},
           1,
           moments},
          kStream);
  }
  global_norm({norm_table.data<NormTensor>(), count, chunks, partials.data<double>(), norm.data<float>()},
              kStream);
  norm.expect_finite("global_norm");
  for (const Values& array : arrays) {
    array.expect_finite("adamw");
  }
}

void run_all(Element element) {
  for (const auto& [rows, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 96}, {7, 1}, {3, 2049}, {33, 2048}, {5, 7168}, {2, 16384}}) {
    rms_norm(rows, width, element);
    swiglu(rows, width, element);
  }
  qk_norm_rope(9, 32, 4, 128, 64, element);
  qk_norm_rope(1, 3, 1, 96, 48, element);
  qk_norm_rope(5, 4, 2, 80, 16, element);
  qk_norm_rope(5, 2, 1, 33, 8, element);
  permute(65, 8, 128, 96, element);
  permute(3, 1, 3, 7, element);
  cross_entropy(3, 50257, element);
  cross_entropy(2, 4096, element);
  for (const auto moments : {AdamWMoments::kFp32, AdamWMoments::kBf16, AdamWMoments::kEightBit}) {
    optimizer(element == Element::kFp32 ? AdamWValue::kFp32 : AdamWValue::kBf16Stochastic, element, moments);
    optimizer(AdamWValue::kBf16Master, element, moments);
  }
}

}  // namespace
}  // namespace phalanx::kernels

// With --nothing only the device is opened: whether a tool reaches it.
int main(int argc, char** argv) {
  try {
    phalanx::kernels::check(cudaFree(nullptr), "opening the device");
    if (argc > 1 && std::strcmp(argv[1], "--nothing") == 0) {
      return 0;
    }
    phalanx::kernels::run_all(phalanx::kernels::Element::kFp32);
    phalanx::kernels::run_all(phalanx::kernels::Element::kBf16);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::puts("all kernels ran");
}
