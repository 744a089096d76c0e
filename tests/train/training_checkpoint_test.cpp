#include "train/training_checkpoint.h"

#include "core/error.h"
#include "support/temporary_folder.h"

#include <ATen/ops/randn.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace phalanx {
namespace {

at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::TensorOptions().dtype(dtype));
}

CheckpointTensors make_tensors() {
  return {{{"w", random_tensor({3, 5}, at::kBFloat16)}, {"b", random_tensor({7})}},
          {{"exp_avg.w", random_tensor({3, 5})}, {"master.w", random_tensor({3, 5})}}};
}

Json progress_at(std::int64_t step) {
  Json progress = Json::object();
  progress.set("step", step);
  return progress;
}

void expect_equal(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
  }
}

TEST(TrainingCheckpoint, ComesBackBitForBit) {
  const TemporaryFolder folder;
  const CheckpointTensors saved = make_tensors();
  const std::string path = save_training_checkpoint(folder / "checkpoints", 12, progress_at(12), saved);
  EXPECT_TRUE(path.ends_with("/step-00000012")) << path;
  const CheckpointTensors loaded = make_tensors();
  EXPECT_EQ(read_progress(path).at("step").as_integer(), 12);
  load_checkpoint_tensors(path, loaded);
  expect_equal(loaded.model, saved.model);
  expect_equal(loaded.optimizer, saved.optimizer);
}

TEST(TrainingCheckpoint, EveryFlippedBitIsNoticed) {
  const TemporaryFolder folder;
  const CheckpointTensors saved = make_tensors();
  const std::string path = save_training_checkpoint(folder / "checkpoints", 1, progress_at(1), saved);
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::string bytes = [&] {
      std::ifstream file(entry.path(), std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    }();
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      std::ofstream(entry.path(), std::ios::binary) << damaged;
      try {
        verify_checkpoint(path);
        ADD_FAILURE() << entry.path() << ": a flipped bit at byte " << at << " went unnoticed";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      }
    }
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  verify_checkpoint(path);
}

TEST(TrainingCheckpoint, ADamagedTensorIsNotLoaded) {
  const TemporaryFolder folder;
  const std::string path =
      save_training_checkpoint(folder / "checkpoints", 1, progress_at(1), make_tensors());
  std::fstream(path + "/optimizer.safetensors", std::ios::binary | std::ios::in | std::ios::out)
      .seekp(-1, std::ios::end)
      .put('!');
  try {
    load_checkpoint_tensors(path, make_tensors());
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer.safetensors: tensor master.w is damaged"),
              std::string::npos)
        << error.what();
  }
}

TEST(TrainingCheckpoint, TheNewestIntactOneIsFound) {
  const TemporaryFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  std::vector<std::string> paths;
  for (const std::int64_t step : {1, 2, 3, 4}) {
    paths.push_back(save_training_checkpoint(checkpoints, step, progress_at(step), make_tensors()));
  }
  EXPECT_EQ(newest_intact_before(checkpoints, paths[3]), paths[2]);
  std::ofstream(paths[2] + "/model.safetensors", std::ios::app) << "!";
  EXPECT_EQ(newest_intact_before(checkpoints, paths[3]), paths[1]);
  EXPECT_EQ(newest_intact_before(checkpoints, paths[0]), std::nullopt);
}

TEST(TrainingCheckpoint, AnotherModelIsRefusedByTensor) {
  const TemporaryFolder folder;
  const std::string path =
      save_training_checkpoint(folder / "checkpoints", 1, progress_at(1), make_tensors());
  CheckpointTensors other = make_tensors();
  other.model[0].second = random_tensor({3, 6}, at::kBFloat16);
  try {
    load_checkpoint_tensors(path, other);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("tensor w is BF16 [3, 5], this run needs BF16 [3, 6]"),
              std::string::npos)
        << error.what();
  }
}

TEST(TrainingCheckpoint, OldOnesAreRemovedAfterTheNewOneIsThere) {
  const TemporaryFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  for (int step = 1; step <= 4; ++step) {
    save_training_checkpoint(checkpoints, step, progress_at(step), make_tensors());
  }
  std::filesystem::create_directory(checkpoints + "/.step-00000005.partial-1-1");
  prune_checkpoints(checkpoints, 2);
  const std::vector<std::string> left = list_checkpoints(checkpoints);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_TRUE(left[0].ends_with("step-00000003") && left[1].ends_with("step-00000004"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "/.step-00000005.partial-1-1"));
  EXPECT_TRUE(list_checkpoints(folder / "nothing").empty());
}

}  // namespace
}  // namespace phalanx
