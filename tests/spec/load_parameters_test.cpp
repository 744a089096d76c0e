#include "models/spec/checkpoint_io.h"
#include "spec/small_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace phalanx {
namespace {

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

}  // namespace
}  // namespace phalanx
