// A model of two layers and three experts, its checkpoints on disk and its parameters in memory.
#pragma once
#include "core/convert.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/model_spec.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace phalanx {

constexpr std::int64_t kExperts = 3, kWidth = 2, kHidden = 4;
inline const std::vector<std::string> kProjections = {"gate_proj", "up_proj", "down_proj"};

inline std::vector<ParameterSpec> parameter_specs() {
  std::vector<ParameterSpec> out = {{"model.embed_tokens.weight", {8, kHidden}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    out.push_back({layer + "mlp.experts.gate_up_proj", {kExperts, 2 * kWidth, kHidden}});
    out.push_back({layer + "mlp.experts.down_proj", {kExperts, kHidden, kWidth}});
    out.push_back({layer + "norm.weight", {kHidden}});
  }
  return out;
}

inline WeightMap weight_map() {
  WeightMap map;
  for (const ParameterSpec& parameter : parameter_specs()) {
    const std::string prefix = parameter.name.substr(0, parameter.name.rfind('.') + 1);
    if (parameter.name.ends_with("gate_up_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, {"gate_proj.weight", "up_proj.weight"}));
    } else if (parameter.name.ends_with("down_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, {"down_proj.weight"}));
    } else {
      map.rules.push_back(same_name(parameter));
    }
  }
  map.ignored = {"lm_head.weight"};
  return map;
}

// Bytes of a checkpoint's tensors by name.
struct Stored {
  TensorInfo info;
  std::string bytes;
};
using Tensors = std::map<std::string, Stored>;

// Every element a number of its own, small enough to be exact in BF16: `next` counts on.
inline Stored numbered(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& shape,
                       int* next) {
  Stored stored{{name, dtype, shape}, {}};
  const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
  for (std::uint64_t i = 0; i < tensor_bytes(dtype, shape) / element; ++i) {
    const auto value = static_cast<float>((*next)++ % 256);
    char bytes[8];
    convert_elements(&value, Dtype::kF32, bytes, dtype, 1);
    stored.bytes.append(bytes, element);
  }
  return stored;
}

inline Tensors released_tensors(Dtype dtype) {
  Tensors out;
  int next = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    out[name] = numbered(name, dtype, shape, &next);
  };
  add("model.embed_tokens.weight", {8, kHidden});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (int expert = 0; expert < kExperts; ++expert) {
      const std::string prefix = layer + "mlp.experts." + std::to_string(expert) + ".";
      add(prefix + "gate_proj.weight", {kWidth, kHidden});
      add(prefix + "up_proj.weight", {kWidth, kHidden});
      add(prefix + "down_proj.weight", {kHidden, kWidth});
    }
    add(layer + "norm.weight", {kHidden});
  }
  return out;
}

inline void write_folder(const std::string& folder, const Tensors& tensors,
                         std::uint64_t max_shard_bytes = kDefaultShardBytes) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, stored] : tensors) {
    infos.push_back(stored.info);
  }
  HfCheckpointWriter writer(folder, infos, max_shard_bytes);
  for (const auto& [name, stored] : tensors) {
    writer.write(name, 0, stored.bytes.size(), stored.bytes.data());
  }
  writer.commit();
  write_file_atomic(folder + "/config.json", "{\"a\": 1, \"torch_dtype\":   \"bfloat16\"}\n");
}

inline Tensors read_folder(const std::string& folder) {
  Tensors out;
  const HfCheckpoint checkpoint(folder);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    Stored& stored = out[tensor.info->name];
    stored.info = {tensor.info->name, tensor.info->dtype, tensor.info->shape};
    stored.bytes.resize(tensor.info->bytes());
    tensor.file->read(*tensor.info, 0, stored.bytes.size(), stored.bytes.data());
  }
  return out;
}

inline void expect_same(const Tensors& found, const Tensors& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, stored] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).info.dtype, stored.info.dtype) << name;
    EXPECT_EQ(found.at(name).info.shape, stored.info.shape) << name;
    EXPECT_EQ(found.at(name).bytes, stored.bytes) << name;
  }
}

// Memory for every parameter, filled with a pattern that no checkpoint here holds.
class Memory {
 public:
  explicit Memory(Dtype dtype, const std::vector<ParameterSpec>& specs = parameter_specs()) {
    for (const ParameterSpec& spec : specs) {
      bytes_.emplace_back(
          static_cast<std::size_t>(spec.numel()) * static_cast<std::size_t>(dtype_bits(dtype)) / 8, '\xEE');
      buffers_.push_back({spec.name, dtype, spec.shape, nullptr});
    }
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      buffers_[i].data = bytes_[i].data();
    }
  }

  const std::vector<ParameterBuffer>& buffers() const { return buffers_; }
  std::vector<ParameterBuffer>& buffers() { return buffers_; }
  std::vector<float> floats(const std::string& name) const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].name == name) {
        std::vector<float> out(bytes_[i].size() * 8 /
                               static_cast<std::size_t>(dtype_bits(buffers_[i].dtype)));
        convert_elements(bytes_[i].data(), buffers_[i].dtype, out.data(), Dtype::kF32, out.size());
        return out;
      }
    }
    return {};
  }

 private:
  std::vector<std::string> bytes_;
  std::vector<ParameterBuffer> buffers_;
};

inline std::vector<float> floats(const Stored& stored) {
  std::vector<float> out(stored.bytes.size() * 8 / static_cast<std::size_t>(dtype_bits(stored.info.dtype)));
  convert_elements(stored.bytes.data(), stored.info.dtype, out.data(), Dtype::kF32, out.size());
  return out;
}

inline void save(const std::string& folder, const Memory& memory, const HfCheckpoint* source,
                 const SaveModelOptions& options = {}) {
  ThreadPool threads(3);
  const Json config = Json::parse(R"({"a":1,"torch_dtype":"bfloat16"})", "t");
  save_model_folder(folder, config, weight_map(), memory.buffers(), source, options, threads);
}

inline void load(const std::string& folder, Memory& memory, const WeightMap& map = weight_map()) {
  ThreadPool threads(3);
  load_parameters(map, HfCheckpoint(folder), memory.buffers(), threads);
}

}  // namespace phalanx
