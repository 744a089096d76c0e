#include "data/token_shards.h"

#include "core/error.h"
#include "fixture.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace phalanx {
namespace {

class TokenFolderTest : public ::testing::Test {
 protected:
  TokenFolderTest() {
    samples_ = testing::make_samples({5, 9, 2, 30}, 100);
    testing::write_token_folder(path_, samples_, 3);
  }

  // The message of opening the folder, which must hold every one of `pieces`.
  void expect_refused(const std::vector<std::string>& pieces, std::int64_t vocab = 100) const {
    const std::string message = testing::message_of([&] { TokenFolder(path_, vocab); });
    for (const std::string& piece : pieces) {
      EXPECT_NE(message.find(piece), std::string::npos) << piece << " is not in: " << message;
    }
  }

  void flip_byte(const std::string& file, std::int64_t from_end) const {
    std::fstream stream(path_ + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-from_end, std::ios::end);
    stream.put(byte);
  }

  TemporaryFolder root_;
  std::string path_ = root_ / "data";
  std::vector<testing::Sample> samples_;
};

TEST_F(TokenFolderTest, ReadsWhatWasWritten) {
  const TokenFolder folder(path_, 100);
  ASSERT_EQ(folder.num_samples(), 4);
  EXPECT_EQ(folder.key(), "key-1");
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(std::ranges::equal(folder.tokens(i), samples_[i].tokens));
    EXPECT_TRUE(std::ranges::equal(folder.loss_mask(i), samples_[i].loss_mask));
  }
  EXPECT_EQ(folder.origin(3), "chat.jsonl:4");
}

TEST_F(TokenFolderTest, NamesTheTokenOutsideTheVocabulary) {
  samples_[3].tokens[17] = 500;
  testing::write_token_folder(path_, samples_, 3);
  expect_refused({"shard-1.safetensors: sample 0 (chat.jsonl:4), position 17: token id 500",
                  "vocabulary of 100; prepare the data with this model's own tokenizer"});
  samples_[3].tokens[17] = -1;
  testing::write_token_folder(path_, samples_, 3);
  expect_refused({"position 17: token id -1"});
}

TEST_F(TokenFolderTest, FindsAFlippedBit) {
  flip_byte("shard-1.safetensors", 3);
  expect_refused({"shard-1.safetensors: tensor loss_mask is damaged", "write the folder again"});
}

TEST_F(TokenFolderTest, NoFolderNoManifestNoShard) {
  std::filesystem::remove(path_ + "/shard-1.safetensors");
  expect_refused({"shard-1.safetensors: the manifest names this file and it is missing"});
  std::filesystem::remove(path_ + "/manifest.json");
  expect_refused({path_, "no manifest.json", "not written by `phalanx prepare`"});
  std::filesystem::remove_all(path_);
  expect_refused({path_, "no such folder"});
}

TEST_F(TokenFolderTest, RefusesAForeignOrGarbledManifest) {
  testing::edit_manifest(path_, [](Json& manifest) { manifest.set("version", 99); });
  expect_refused({"manifest.json: version 99, this program reads 1"});
  testing::edit_manifest(path_, [](Json& manifest) {
    manifest.set("version", 1);
    manifest.set("key", 5);
  });
  expect_refused({"manifest.json: ", "integer", "string"});
  testing::write_text(path_ + "/manifest.json", "{\"format\": ");
  expect_refused({"manifest.json:1:"});
  testing::write_text(path_ + "/manifest.json", "{\"format\": \"other\"}");
  expect_refused({"manifest.json: \"format\" is not"});
}

TEST_F(TokenFolderTest, RefusesShardNamesThatLeaveTheFolder) {
  for (const char* name : {"../shard-0.safetensors", "/etc/passwd", "", ".."}) {
    testing::edit_manifest(path_, [&](Json& manifest) {
      manifest.as_object().back().second.as_array().front().set("name", name);
    });
    expect_refused({"manifest.json: shard name", "is not a plain file name"});
  }
}

TEST_F(TokenFolderTest, RefusesCountsThatDisagree) {
  testing::edit_manifest(
      path_, [](Json& manifest) { manifest.as_object().back().second.as_array().front().set("tokens", 17); });
  expect_refused({"shard-0.safetensors: tensor tokens is I32 [16], by the manifest it should be I32 [17]"});
}

}  // namespace
}  // namespace phalanx
