// Files damaged at random: whatever comes of it is a checked file or an IoError, never a crash and never a read outside.
#include "core/philox.h"
#include "io/hf_checkpoint.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace phalanx {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t stream) : stream_(stream) {}
  std::uint32_t below(std::uint32_t limit) { return philox_block(1, stream_, index_++)[0] % limit; }

 private:
  std::uint64_t stream_;
  std::uint64_t index_ = 0;
};

// Overwrites, doubles or removes a few pieces; digits and brackets come up often, as they steer the reader most.
std::string damaged(std::string text, Random& random) {
  constexpr std::string_view kTelling = "0123456789[]{},:\"-. eE\\";
  for (std::uint32_t i = 1 + random.below(4); i > 0 && !text.empty(); --i) {
    const std::size_t at = random.below(static_cast<std::uint32_t>(text.size()));
    const std::size_t length = 1 + random.below(8);
    switch (random.below(5)) {
      case 0:
        text[at] = kTelling[random.below(kTelling.size())];
        break;
      case 1:
        text[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(random.below(static_cast<std::uint32_t>(text.size())), length));
        break;
      default:
        text.resize(at);
        break;
    }
  }
  return text;
}

// Reads every byte that an opened file promises.
void read_all(const SafetensorsFile& file) {
  for (const TensorInfo& tensor : file.tensors()) {
    std::string bytes(tensor.bytes(), '\0');
    file.read(tensor, 0, bytes.size(), bytes.data());
  }
}

// Without a wait for the disk, which ext4 has also when a file is cut to nothing and written again.
void write_plain(const std::string& path, const std::string& content) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << content;
}

TEST(Damage, OfASafetensorsFileIsRefusedOrHarmless) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)" + raw_entry("a.weight", "F32", "[2,3]", "[0,24]") + "," +
      raw_entry("b", "F4", "[4]", "[24,26]") + "," + raw_entry("c", "I64", "[]", "[26,34]") + "}";
  const std::string data(34, 'x');
  const std::string whole = raw_safetensors(header, data);
  int refused = 0;
  constexpr int kTrials = 10000;
  for (int trial = 0; trial < kTrials; ++trial) {
    Random random(static_cast<std::uint64_t>(trial));
    // The first 8 bytes are the header's length: half of the trials keep the two in step.
    write_plain(path,
                trial % 2 == 0 ? raw_safetensors(damaged(header, random), data) : damaged(whole, random));
    const std::string message = io_error([&] { read_all(SafetensorsFile(path)); });
    refused += message != "no error";
    if (message != "no error") {
      ASSERT_TRUE(message.starts_with(path)) << "trial " << trial << ": " << message;
    }
  }
  EXPECT_GT(refused, kTrials / 2);
  EXPECT_LT(refused, kTrials);
}

TEST(Damage, OfAnIndexIsRefusedOrHarmless) {
  const TemporaryFolder folder;
  write_byte_tensors(folder / "one.safetensors", {"a", "b"});
  write_byte_tensors(folder / "two.safetensors", {"c"});
  const std::string index =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}})";
  int refused = 0;
  constexpr int kTrials = 5000;
  for (int trial = 0; trial < kTrials; ++trial) {
    Random random(static_cast<std::uint64_t>(trial));
    write_plain(folder / "model.safetensors.index.json", damaged(index, random));
    const std::string message = io_error([&] { HfCheckpoint checkpoint(folder.path()); });
    refused += message != "no error";
    if (message != "no error") {
      ASSERT_TRUE(message.starts_with(folder.path())) << "trial " << trial << ": " << message;
    }
  }
  EXPECT_GT(refused, kTrials / 2);
  EXPECT_LT(refused, kTrials);
}

}  // namespace
}  // namespace phalanx
