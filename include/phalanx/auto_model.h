// A causal language model out of a Hugging Face folder: run it, train it, write it back.
//
//   auto model = phalanx::AutoModelForCausalLM::from_pretrained("Qwen3-30B-A3B");
//   auto output = model.forward({.tokens = tokens, .labels = labels});
//   output.loss.backward();
//   model.save_pretrained("tuned");
// The same input gives the same bits on the CPU, on any number of threads if the process has the environment variable
// MKL_CBWR=AUTO,STRICT at its first matrix product; otherwise MKL cuts its sums by the number of threads.
//
// Legend: T tokens of all documents laid end to end, V vocabulary.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace phalanx {

struct LoadOptions {
  std::optional<at::ScalarType> dtype;          // of the parameters; default: the checkpoint's
  std::string experts_implementation = "auto";  // auto | eager | batched_mm | grouped_mm | phalanx
  std::optional<double> router_aux_loss_coef;   // default: what config.json asks for
  std::string recompute = "none";  // none | selective | full: activations that backward makes again
  at::Device device = at::kCPU;    // where the parameters live and the model computes
  bool read_weights = true;        // false: uninitialised, `model` need hold no more than a config.json
  // Names of torch.distributed's groups: all ranks, those that hold all experts together, those that hold the same experts. Each rank
  // then holds its share of the experts, and forward and backward are collective. Empty: one rank.
  std::vector<std::string> groups = {};
};

struct CausalLMInput {
  // Tokens and labels may be on the CPU, whatever the device: no host waits for a GPU then.
  at::Tensor tokens;       // [T] int64
  at::Tensor labels = {};  // [T] int64, already shifted: the token to predict at each position, or -100
  std::vector<std::int64_t> lengths = {};  // of the documents, sum T; empty: one document
  at::Tensor position_ids = {};            // [T] int64; undefined: counted from 0 in each document
  std::vector<at::Tensor> routing =
      {};  // [T, K] int32 per expert layer: forces the choice of experts; empty: the router's
};

struct CausalLMOutput {
  at::Tensor
      loss;  // [] with labels: mean over supervised tokens, plus the weighted auxiliary loss; differentiable
  at::Tensor aux_loss;  // [] load-balancing loss, when its coefficient is not 0
  at::Tensor correct;   // [T] bool with labels: the most likely token is the label
  at::Tensor logits;    // [T, V] without labels; differentiable
};

class AdamW;

class AutoModelForCausalLM {
 public:
  // `model` is a folder, or a hub id that is in the local Hugging Face cache. Throws ConfigError, IoError.
  static AutoModelForCausalLM from_pretrained(const std::string& model, const LoadOptions& options = {});
  ~AutoModelForCausalLM();
  AutoModelForCausalLM(AutoModelForCausalLM&&) noexcept;
  AutoModelForCausalLM& operator=(AutoModelForCausalLM&&) noexcept;

  CausalLMOutput forward(const CausalLMInput& input) const;

  // Names and shapes are those of Transformers' modules; the tensors are leaves, gradients appear in `grad()`.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  // Writes a Hugging Face folder, whole or not at all: names, layout and dtypes of the checkpoint the model came from, tokenizer
  // and tensors of other parts included. Throws IoError.
  void save_pretrained(const std::string& folder, std::uint64_t max_shard_bytes = 5'000'000'000) const;

 private:
  friend class AdamW;
  struct Impl;
  explicit AutoModelForCausalLM(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx
