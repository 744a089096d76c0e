#include "io/hf_checkpoint.h"

#include "core/json.h"
#include "core/log.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

const std::string kIndex = "model.safetensors.index.json";

std::string refusal(const std::string& folder) {
  return io_error([&] { HfCheckpoint checkpoint(folder); });
}

// Two shards: one.safetensors with a and b, two.safetensors with c.
void write_sharded(const TemporaryFolder& folder,
                   const std::string& weight_map =
                       R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})") {
  write_byte_tensors(folder / "one.safetensors", {"a", "b"});
  write_byte_tensors(folder / "two.safetensors", {"c"});
  write_file_atomic(folder / kIndex, R"({"metadata":{"total_size":12},"weight_map":)" + weight_map + "}");
}

TEST(HfCheckpoint, OpensASingleFileAndPrefersItToAnIndex) {
  const TemporaryFolder folder;
  write_byte_tensors(folder / "model.safetensors", {"a"});
  write_file_atomic(folder / kIndex, "{}");
  const HfCheckpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.tensors().size(), 1u);
  EXPECT_EQ(checkpoint.find("a")->info->bytes(), 4u);
  EXPECT_EQ(checkpoint.find("b"), nullptr);
}

TEST(HfCheckpoint, OpensShards) {
  const TemporaryFolder folder;
  write_sharded(folder);
  const HfCheckpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.total_bytes(), 12u);
  EXPECT_EQ(checkpoint.find("c")->file->path(), folder / "two.safetensors");
}

TEST(HfCheckpoint, RefusesShardNamesThatArePaths) {
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".",
                                 "one.bin", ".safetensors", "one\\u0000.safetensors"}) {
    const TemporaryFolder folder;
    write_sharded(folder, R"({"a":")" + name + R"("})");
    EXPECT_PRED2(contains, refusal(folder.path()), folder / kIndex + ": places tensor 'a' in '");
    EXPECT_PRED2(contains, refusal(folder.path()), "expected the plain name of a .safetensors file");
  }
}

TEST(HfCheckpoint, RefusesLinksThatLeaveTheFolder) {
  const TemporaryFolder outside;
  write_byte_tensors(outside / "secret.safetensors", {"a"});
  const TemporaryFolder folder;
  fs::create_symlink(outside / "secret.safetensors", folder / "model.safetensors");
  EXPECT_PRED2(contains, refusal(folder.path()),
               folder / "model.safetensors: is a link that leaves the folder");
}

TEST(HfCheckpoint, FollowsLinksWithinTheFolderAndWithinTheHubCache) {
  const TemporaryFolder folder;
  write_byte_tensors(folder / "weights", {"a"});
  fs::create_symlink("weights", folder / "model.safetensors");
  EXPECT_EQ(refusal(folder.path()), "no error");

  const TemporaryFolder cache;
  const std::string snapshot = cache / "models--org--name/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "models--org--name/blobs");
  write_byte_tensors(cache / "models--org--name/blobs/123", {"a"});
  fs::create_symlink("../../blobs/123", snapshot + "/model.safetensors");
  EXPECT_EQ(refusal(snapshot), "no error");

  fs::remove(snapshot + "/model.safetensors");
  fs::create_directories(cache / "models--org--other");
  write_byte_tensors(cache / "models--org--other/123", {"a"});
  fs::create_symlink("../../../models--org--other/123", snapshot + "/model.safetensors");
  EXPECT_PRED2(contains, refusal(snapshot), "is a link that leaves the folder");
}

TEST(HfCheckpoint, RefusesAnIndexThatDoesNotMatchItsShards) {
  const auto with_map = [](const std::string& weight_map) {
    const TemporaryFolder folder;
    write_sharded(folder, weight_map);
    return refusal(folder.path());
  };
  EXPECT_PRED2(contains, with_map(R"({"a":"one.safetensors","b":"three.safetensors"})"),
               "/three.safetensors: is missing, though");
  EXPECT_PRED2(contains, with_map(R"({"a":"one.safetensors","c":"two.safetensors"})"),
               "/one.safetensors: holds tensor 'b', which");
  EXPECT_PRED2(
      contains,
      with_map(
          R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors"})"),
      "/two.safetensors: lacks tensor 'd', which");
  EXPECT_PRED2(contains, with_map(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})"),
               "/one.safetensors: holds tensor 'b', which");
  EXPECT_PRED2(contains, with_map(R"({"a":1})"), "'weight_map' gives tensor 'a' a value of kind integer");
  EXPECT_PRED2(contains, with_map("[]"), "has no object 'weight_map'");
  EXPECT_PRED2(contains, with_map(R"({"a":"one.safetensors","a":"two.safetensors"})"),
               "key 'a' occurs twice");
}

TEST(HfCheckpoint, RefusesATensorInTwoShards) {
  const TemporaryFolder folder;
  write_sharded(folder);
  write_byte_tensors(folder / "two.safetensors", {"c", "a"});
  const std::string message = refusal(folder.path());
  EXPECT_PRED2(
      contains, message,
      folder / "two.safetensors: holds tensor 'a', which " + (folder / "one.safetensors holds as well"));
}

TEST(HfCheckpoint, WarnsOfAWrongTotalSize) {
  const TemporaryFolder folder;
  write_sharded(folder);
  std::vector<std::string> warnings;
  LogSink before = set_log_sink([&](LogLevel level, std::string_view message) {
    EXPECT_EQ(level, LogLevel::kWarning);
    warnings.emplace_back(message);
  });
  HfCheckpoint{folder.path()};
  EXPECT_TRUE(warnings.empty());
  write_byte_tensors(folder / "two.safetensors", {"c"}, 5);
  HfCheckpoint{folder.path()};
  set_log_sink(std::move(before));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_PRED2(contains, warnings[0], "total_size is 12, the tensors have 13 bytes");
}

TEST(HfCheckpoint, RefusesFoldersWithoutReadableWeights) {
  const TemporaryFolder folder;
  EXPECT_PRED2(contains, refusal(folder.path()),
               folder.path() + ": holds no weights, expected model.safetensors or");
  write_file_atomic(folder / "pytorch_model.bin", "PK");
  EXPECT_PRED2(contains, refusal(folder.path()), "has pickled weights only ('pytorch_model.bin')");
  EXPECT_PRED2(contains, refusal(folder.path()), "save_pretrained");
  write_byte_tensors(folder / "model-00001-of-00002.safetensors", {"a"});
  EXPECT_PRED2(contains, refusal(folder.path()),
               "has neither model.safetensors nor model.safetensors.index.json");
  EXPECT_PRED2(contains, refusal(folder / "absent"), "is no folder");
}

std::vector<TensorInfo> byte_tensors(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
  std::vector<TensorInfo> out;
  for (const auto& [name, size] : sizes) {
    out.push_back({name, Dtype::kU8, {size}});
  }
  return out;
}

void write_all(HfCheckpointWriter& writer, const std::vector<TensorInfo>& tensors) {
  for (const TensorInfo& tensor : tensors) {
    const std::string bytes(static_cast<std::size_t>(tensor.shape[0]), tensor.name[0]);
    writer.write(tensor.name, 0, bytes.size(), bytes.data());
  }
}

TEST(HfCheckpointWriter, SplitsInOrderAndWritesTheIndexLast) {
  const TemporaryFolder folder;
  const auto tensors = byte_tensors({{"d", 6}, {"c", 4}, {"big", 11}, {"b", 1}, {"a", 6}});
  HfCheckpointWriter writer(folder.path(), tensors, 10);
  write_all(writer, tensors);
  writer.commit();

  const HfCheckpoint checkpoint(folder.path());
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors", kIndex}));
  const Json index = Json::parse_file(folder / kIndex);
  EXPECT_EQ(
      index.dump(),
      R"({"metadata":{"total_parameters":28,"total_size":28},"weight_map":{"a":"model-00003-of-00003.safetensors",)"
      R"("b":"model-00003-of-00003.safetensors","big":"model-00001-of-00003.safetensors",)"
      R"("c":"model-00002-of-00003.safetensors","d":"model-00002-of-00003.safetensors"}})");
  char byte = 0;
  const StoredTensor* big = checkpoint.find("big");
  big->file->read(*big->info, 10, 1, &byte);
  EXPECT_EQ(byte, 'b');
  EXPECT_EQ(big->file->metadata(), (SafetensorsMetadata{{"format", "pt"}}));
}

TEST(HfCheckpointWriter, WritesOneFileWithoutIndexWhenAllFits) {
  const TemporaryFolder folder;
  const auto tensors = byte_tensors({{"b", 6}, {"a", 4}});
  HfCheckpointWriter writer(folder.path(), tensors, 10);
  write_all(writer, tensors);
  writer.commit();
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model.safetensors"});
}

TEST(HfCheckpointWriter, LeavesNothingWhenBytesAreMissing) {
  const TemporaryFolder folder;
  {
    const auto tensors = byte_tensors({{"b", 6}, {"a", 4}});
    HfCheckpointWriter writer(folder.path(), tensors, 5);
    writer.write("b", 0, 5, "bbbbb");
    EXPECT_THROW(writer.write("c", 0, 1, "c"), Error);
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(folder.names().empty());
  EXPECT_THROW(HfCheckpointWriter(folder.path(), byte_tensors({{"a", 4}, {"a", 4}}), 5), IoError);
  EXPECT_THROW(HfCheckpointWriter(folder.path(), {}, 5), IoError);
}

TEST(CopySideFiles, TakesTokenizerAndTemplatesButNoCodeAndNoWeights) {
  const TemporaryFolder from;
  const TemporaryFolder to;
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "generation_config.json",
        "modeling_evil.py", "pytorch_model.bin", "model.safetensors", "LICENSE"}) {
    write_file_atomic(from / name, name);
  }
  fs::create_directory(from / "additional_chat_templates");
  write_file_atomic(from / "additional_chat_templates/tools.jinja", "t");
  copy_side_files(from.path(), to.path());
  EXPECT_EQ(to.names(),
            (std::vector<std::string>{"LICENSE", "additional_chat_templates", "chat_template.jinja",
                                      "generation_config.json", "tokenizer.json", "tokenizer.model"}));
  EXPECT_EQ(read_text(to / "tokenizer.json"), "tokenizer.json");
  EXPECT_EQ(read_text(to / "additional_chat_templates/tools.jinja"), "t");

  fs::create_symlink("/etc/hostname", from / "merges.txt");
  EXPECT_PRED2(contains, io_error([&] { copy_side_files(from.path(), to.path()); }),
               "merges.txt: is a link that leaves the folder");
}

}  // namespace
}  // namespace phalanx
