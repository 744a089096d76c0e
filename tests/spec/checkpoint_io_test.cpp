#include "models/spec/checkpoint_io.h"

#include "core/convert.h"
#include "models/spec/model_spec.h"
#include "models/spec/weight_match.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

namespace phalanx {
namespace {

// A model in small: two layers of E = 3 experts, I = 2, H = 4, in the names of a released checkpoint.
constexpr std::int64_t kExperts = 3, kWidth = 2, kHidden = 4;
const std::vector<std::string> kProjections = {"gate_proj", "up_proj", "down_proj"};

std::vector<ParameterSpec> parameter_specs() {
  std::vector<ParameterSpec> out = {{"model.embed_tokens.weight", {8, kHidden}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    out.push_back({layer + "mlp.experts.gate_up_proj", {kExperts, 2 * kWidth, kHidden}});
    out.push_back({layer + "mlp.experts.down_proj", {kExperts, kHidden, kWidth}});
    out.push_back({layer + "norm.weight", {kHidden}});
  }
  return out;
}

WeightMap weight_map() {
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
Stored numbered(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& shape, int* next) {
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

Tensors released_tensors(Dtype dtype) {
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

void write_folder(const std::string& folder, const Tensors& tensors,
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

Tensors read_folder(const std::string& folder) {
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

void expect_same(const Tensors& found, const Tensors& wanted) {
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

std::vector<float> floats(const Stored& stored) {
  std::vector<float> out(stored.bytes.size() * 8 / static_cast<std::size_t>(dtype_bits(stored.info.dtype)));
  convert_elements(stored.bytes.data(), stored.info.dtype, out.data(), Dtype::kF32, out.size());
  return out;
}

void save(const std::string& folder, const Memory& memory, const HfCheckpoint* source,
          const SaveModelOptions& options = {}) {
  ThreadPool threads(3);
  const Json config = Json::parse(R"({"a":1,"torch_dtype":"bfloat16"})", "t");
  save_model_folder(folder, config, weight_map(), memory.buffers(), source, options, threads);
}

void load(const std::string& folder, Memory& memory, const WeightMap& map = weight_map()) {
  ThreadPool threads(3);
  load_parameters(map, HfCheckpoint(folder), memory.buffers(), threads);
}

TEST(LoadParameters, StacksExpertsWithGateAboveUp) {
  const TemporaryFolder folder;
  const Tensors tensors = released_tensors(Dtype::kBF16);
  write_folder(folder.path(), tensors, 60);
  Memory memory(Dtype::kF32);
  load(folder.path(), memory);

  std::vector<float> gate_up, down;
  for (const std::string expert : {"0", "1", "2"}) {
    for (const std::string& projection : kProjections) {
      const std::vector<float> values =
          floats(tensors.at("model.layers.1.mlp.experts." + expert + "." + projection + ".weight"));
      std::vector<float>& into = projection == "down_proj" ? down : gate_up;
      into.insert(into.end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(memory.floats("model.layers.1.mlp.experts.gate_up_proj"), gate_up);
  EXPECT_EQ(memory.floats("model.layers.1.mlp.experts.down_proj"), down);
  EXPECT_EQ(memory.floats("model.layers.0.norm.weight"), floats(tensors.at("model.layers.0.norm.weight")));
}

TEST(SaveModelFolder, GivesBackTheSameCheckpointInEveryLayoutAndDtypeOfMemory) {
  for (const Dtype disk : {Dtype::kBF16, Dtype::kF32}) {
    for (const Dtype in_memory : {Dtype::kBF16, Dtype::kF32, Dtype::kF64}) {
      if (in_memory == Dtype::kF64 && disk == Dtype::kBF16) {
        continue;  // refused, tested below
      }
      for (const std::uint64_t max_shard_bytes : {std::uint64_t{100}, kDefaultShardBytes}) {
        const TemporaryFolder folder;
        std::filesystem::create_directory(folder / "in");
        const Tensors tensors = released_tensors(disk);
        write_folder(folder / "in", tensors, max_shard_bytes);
        Memory memory(in_memory);
        load(folder / "in", memory);
        const HfCheckpoint source(folder / "in");
        SaveModelOptions options;
        options.max_shard_bytes = max_shard_bytes;
        save(folder / "out", memory, &source, options);
        expect_same(read_folder(folder / "out"), tensors);
        EXPECT_EQ(read_text(folder / "out/config.json"), read_text(folder / "in/config.json"));
      }
    }
  }
}

TEST(SaveModelFolder, WritesTheMergedLayoutAndKeepsItWhenItIsTheSource) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  const Tensors tensors = released_tensors(Dtype::kBF16);
  write_folder(folder / "in", tensors);
  const HfCheckpoint source(folder / "in");
  Memory memory(Dtype::kBF16);
  load(folder / "in", memory);
  SaveModelOptions merged;
  merged.layout = WeightLayout::kMerged;
  save(folder / "merged", memory, &source, merged);

  const Tensors found = read_folder(folder / "merged");
  ASSERT_EQ(found.size(), parameter_specs().size());
  for (const ParameterSpec& spec : parameter_specs()) {
    EXPECT_EQ(found.at(spec.name).info.shape, spec.shape);
    EXPECT_EQ(found.at(spec.name).info.dtype, Dtype::kBF16);
    EXPECT_EQ(floats(found.at(spec.name)), memory.floats(spec.name));
  }

  Memory again(Dtype::kF32);
  load(folder / "merged", again);
  const HfCheckpoint merged_source(folder / "merged");
  save(folder / "merged2", again, &merged_source);
  expect_same(read_folder(folder / "merged2"), found);
  SaveModelOptions released;
  released.layout = WeightLayout::kReleased;
  save(folder / "released", again, &merged_source, released);
  expect_same(read_folder(folder / "released"), tensors);
}

TEST(SaveModelFolder, ConvertsWhenAskedAndTellsItInTheConfig) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  write_folder(folder / "in", released_tensors(Dtype::kF32));
  const HfCheckpoint source(folder / "in");
  Memory memory(Dtype::kF32);
  load(folder / "in", memory);
  SaveModelOptions options;
  options.dtype = Dtype::kF16;
  save(folder / "out", memory, &source, options);
  expect_same(read_folder(folder / "out"), released_tensors(Dtype::kF16));
  EXPECT_EQ(Json::parse_file(folder / "out/config.json").dump(), R"({"a":1,"torch_dtype":"float16"})");
  save(folder / "fresh", memory, nullptr);
  expect_same(read_folder(folder / "fresh"), released_tensors(Dtype::kF32));
}

TEST(SaveModelFolder, CarriesTensorsOfOtherPartsThroughAndTheSideFiles) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  Tensors tensors = released_tensors(Dtype::kBF16);
  int next = 7;
  for (const std::string name :
       {"mtp.fc.weight", "model.visual.blocks.0.attn.weight", "model.layers.2.eh_proj.weight"}) {
    tensors[name] = numbered(name, Dtype::kF32, {3, 5}, &next);
  }
  tensors["mtp.big"] =
      Stored{{"mtp.big", Dtype::kF8E4M3, {9'000'001}}, std::string(9'000'001, 'm')};  // several pieces
  Tensors with_ignored = tensors;
  with_ignored["lm_head.weight"] = numbered("lm_head.weight", Dtype::kBF16, {8, kHidden}, &next);
  write_folder(folder / "in", with_ignored);
  write_file_atomic(folder / "in/tokenizer.json", "{}");
  const HfCheckpoint source(folder / "in");
  Memory memory(Dtype::kF32);
  load(folder / "in", memory);
  save(folder / "out", memory, &source);
  expect_same(read_folder(folder / "out"), tensors);
  EXPECT_EQ(read_text(folder / "out/tokenizer.json"), "{}");
}

TEST(SaveModelFolder, LeavesNothingBehindWhenItCannotBeWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  write_folder(folder / "in", released_tensors(Dtype::kF32));
  HfCheckpoint source(folder / "in");
  Memory memory(Dtype::kF32);
  load(folder / "in", memory);
  Tensors broken = released_tensors(Dtype::kF32);
  int next = 0;
  broken["mtp.weight"] = numbered("mtp.weight", Dtype::kF32, {100}, &next);
  write_folder(folder / "in", broken);
  const HfCheckpoint shrinking(folder / "in");
  const std::string weights = folder / "in/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 10);  // while it is the source
  const std::string message = io_error([&] { save(folder / "out", memory, &shrinking); });
  EXPECT_PRED2(contains, message, "the file ends too early");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"in"});
}

TEST(SaveModelFolder, RefusesToRoundTwice) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  write_folder(folder / "in", released_tensors(Dtype::kBF16));
  const HfCheckpoint source(folder / "in");
  Memory memory(Dtype::kF64);
  load(folder / "in", memory);
  EXPECT_THROW(save(folder / "out", memory, &source), Error);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"in"});
}

std::string load_error(const Tensors& tensors, const WeightMap& map = weight_map()) {
  const TemporaryFolder folder;
  write_folder(folder.path(), tensors);
  Memory memory(Dtype::kF32);
  const std::string message = io_error([&] { load(folder.path(), memory, map); });
  EXPECT_EQ(memory.floats("model.layers.0.norm.weight")[0], memory.floats("model.layers.1.norm.weight")[3])
      << "read although refused";
  return message;
}

TEST(LoadParameters, ListsEverythingThatDoesNotFitInOneError) {
  Tensors tensors = released_tensors(Dtype::kF32);
  int next = 0;
  tensors.erase("model.layers.0.norm.weight");
  tensors.erase("model.layers.1.mlp.experts.2.up_proj.weight");
  tensors["model.embed_tokens.weight"] =
      numbered("model.embed_tokens.weight", Dtype::kF32, {kHidden, 8}, &next);
  for (const std::string name :
       {"model.layers.0.mlp.experts.3.up_proj.weight", "model.layers.1.norm.bias", "lm_head.bias"}) {
    tensors[name] = numbered(name, Dtype::kF32, {2}, &next);
  }
  const std::string message = load_error(tensors);
  for (const char* part :
       {"2 missing, 1 misshaped, 3 surplus", "missing: 'model.layers.0.norm.weight' of parameter",
        "missing: 'model.layers.1.mlp.experts.2.up_proj.weight' of parameter "
        "'model.layers.1.mlp.experts.gate_up_proj'",
        "misshaped: 'model.embed_tokens.weight' in ", "has shape [4, 8], the model needs [8, 4]",
        "surplus: 'model.layers.0.mlp.experts.3.up_proj.weight' in ",
        "surplus: 'model.layers.1.norm.bias' in ", "surplus: 'lm_head.bias' in ",
        "use the config.json that was published with these weights"}) {
    EXPECT_PRED2(contains, message, part);
  }
}

TEST(LoadParameters, ListsTheFirstTwentyOfEachKindAndCountsTheRest) {
  Tensors tensors = released_tensors(Dtype::kF32);
  int next = 0;
  for (int i = 3; i < 28; ++i) {
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(i) + ".up_proj.weight";
    tensors[name] = numbered(name, Dtype::kF32, {2}, &next);
  }
  const std::string message = load_error(tensors);
  EXPECT_PRED2(contains, message, "0 missing, 0 misshaped, 25 surplus");
  EXPECT_PRED2(contains, message, "... and 5 more surplus");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 22);
}

TEST(LoadParameters, RefusesAParameterStoredInBothForms) {
  Tensors tensors = released_tensors(Dtype::kF32);
  int next = 0;
  const std::string merged = "model.layers.0.mlp.experts.down_proj";
  tensors[merged] = numbered(merged, Dtype::kF32, {kExperts, kHidden, kWidth}, &next);
  EXPECT_PRED2(contains, load_error(tensors), "surplus: '" + merged + "' in ");
}

TEST(LoadParameters, RefusesDtypesItCannotConvert) {
  Tensors tensors = released_tensors(Dtype::kF32);
  int next = 0;
  Stored& norm = tensors["model.layers.0.norm.weight"];
  norm = numbered("model.layers.0.norm.weight", Dtype::kBF16, {kHidden}, &next);
  norm.info.dtype = Dtype::kI16;
  EXPECT_PRED2(contains, load_error(tensors),
               "tensor 'model.layers.0.norm.weight' has dtype I16, which cannot be read as F32");
}

TEST(LoadParameters, RefusesAMapThatDoesNotFillItsParameters) {
  WeightMap map = weight_map();
  map.rules[1].forms[0].placements[0].offset = kExperts * 2 * kWidth * kHidden;
  const TemporaryFolder folder;
  write_folder(folder.path(), released_tensors(Dtype::kF32));
  Memory memory(Dtype::kF32);
  EXPECT_THROW(load(folder.path(), memory, map), Error);
  map = weight_map();
  map.rules[1].forms[0].placements.pop_back();
  EXPECT_THROW(load(folder.path(), memory, map), Error);
  memory.buffers().pop_back();
  EXPECT_THROW(load(folder.path(), memory), Error);
}

TEST(Transpose, SwapsTheLastTwoDimensionsBothWays) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  int next = 0;
  const Tensors tensors = {{"w", numbered("w", Dtype::kBF16, {2, 3, 5}, &next)}};
  write_folder(folder / "in", tensors);
  WeightMap map;
  map.rules = {{"p", {{{{"w", {2, 3, 5}, "p", 0, true}}}}}};
  Memory memory(Dtype::kF32, {{"p", {2, 5, 3}}});
  load(folder / "in", memory, map);
  const std::vector<float> on_disk = floats(tensors.at("w"));
  const std::vector<float> values = memory.floats("p");
  for (int m = 0; m < 2; ++m) {
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 5; ++c) {
        EXPECT_EQ(values[static_cast<std::size_t>(m * 15 + c * 3 + r)],
                  on_disk[static_cast<std::size_t>(m * 15 + r * 5 + c)]);
      }
    }
  }
  ThreadPool threads(2);
  const HfCheckpoint source(folder / "in");
  save_model_folder(folder / "out", Json::object(), map, memory.buffers(), &source, {}, threads);
  expect_same(read_folder(folder / "out"), tensors);
}

}  // namespace
}  // namespace phalanx
