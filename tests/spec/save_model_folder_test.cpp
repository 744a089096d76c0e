#include "models/spec/checkpoint_io.h"
#include "spec/small_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace phalanx {
namespace {

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
