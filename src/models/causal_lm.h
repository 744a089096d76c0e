// A causal language model: its spec, its parameters, and where they came from.
#pragma once
#include "models/decoder.h"
#include "models/parameter_set.h"
#include "models/spec/model_spec.h"
#include "parallel/mesh.h"

#include <cstdint>
#include <optional>
#include <string>

namespace phalanx {

struct SaveOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::optional<Dtype> dtype;  // of every parameter; default: each as the source checkpoint has it
  std::string chat_template;   // a Jinja file that takes the place of the source's, if any
  bool replace = false;        // a folder of that name; otherwise it is refused unless it is empty
};

class CausalLM {
 public:
  // Reads a Hugging Face folder, or a hub id that is in the local cache. Every tensor is checked before the first one is read;
  // parameters are held as `dtype`, by default the checkpoint's own, on `device`. With several ranks in `mesh` each reads and holds its
  // share of the experts. Throws ConfigError and IoError.
  static CausalLM from_pretrained(const std::string& model,
                                  std::optional<at::ScalarType> dtype = std::nullopt,
                                  at::Device device = at::kCPU, const Mesh& mesh = {});

  // The same with parameters left uninitialised: the caller fills them.
  static CausalLM without_weights(const std::string& model,
                                  std::optional<at::ScalarType> dtype = std::nullopt,
                                  at::Device device = at::kCPU, const Mesh& mesh = {});

  const ModelSpec& spec() const { return spec_; }
  const ParameterSet& parameters() const { return parameters_; }
  ParameterSet& parameters() { return parameters_; }
  const Mesh& mesh() const { return mesh_; }
  const std::string& source() const { return source_; }  // the folder it was read from

  // Writes a Hugging Face folder, whole or not at all: names, layout and dtypes of the released checkpoint, with config,
  // tokenizer, chat template and the tensors of other parts as they were. With several ranks collective: the first one writes, and
  // holds the whole model on the host for it. Throws IoError.
  void save_pretrained(const std::string& folder, const SaveOptions& options = {}) const;

 private:
  ModelSpec spec_;
  ParameterSet parameters_;
  std::string source_;
  Mesh mesh_;
};

}  // namespace phalanx
