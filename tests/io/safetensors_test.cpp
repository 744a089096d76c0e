#include "io/safetensors.h"

#include "core/error.h"
#include "core/thread_pool.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace phalanx {
namespace {

// The refusal of a file with this header and `data_bytes` bytes of tensors.
std::string refusal(const std::string& header, std::size_t data_bytes) {
  const TemporaryFolder folder;
  write_raw_safetensors(folder / "m.safetensors", header, std::string(data_bytes, '\0'));
  const std::string message = io_error([&] { SafetensorsFile file(folder / "m.safetensors"); });
  if (message != "no error") {
    EXPECT_TRUE(message.starts_with(folder / "m.safetensors")) << message;
  }
  return message;
}

#define EXPECT_REFUSAL(header, data_bytes, part) EXPECT_PRED2(contains, refusal(header, data_bytes), part)

TEST(SafetensorsFile, ReadsTensorsMetadataAndParts) {
  const TemporaryFolder folder;
  const std::string header = R"( {"__metadata__":{"format":"pt"},)" + raw_entry("b", "I8", "[3]", "[4,7]") +
                             "," + raw_entry("a", "F32", "[]", "[0,4]") + "," +
                             raw_entry("z", "BF16", "[2,0]", "[7,7]") + "}  ";
  write_raw_safetensors(folder / "m.safetensors", header,
                        std::string("\0\0\x80\x3f"
                                    "xyz",
                                    7));
  const SafetensorsFile file(folder / "m.safetensors");

  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.at("z").shape, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(file.at("z").bytes(), 0u);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  float scalar = 0;
  file.read(file.at("a"), 0, 4, &scalar);
  EXPECT_EQ(scalar, 1.0f);
  char part[2];
  file.read(file.at("b"), 1, 2, part);
  EXPECT_EQ(std::string(part, 2), "yz");
  EXPECT_THROW(file.read(file.at("b"), 2, 2, part), Error);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.at("c"), IoError);
}

TEST(SafetensorsFile, AcceptsAFileWithoutTensors) {
  EXPECT_EQ(refusal("{}", 0), "no error");
  EXPECT_EQ(refusal(R"({"__metadata__":{}})", 0), "no error");
}

TEST(SafetensorsFile, RefusesWrongHeaderLengths) {
  const TemporaryFolder folder;
  const auto with_length = [&](std::uint64_t length) {
    const std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
    write_file_atomic(folder / "m", content + "{}");
    return io_error([&] { SafetensorsFile file(folder / "m"); });
  };
  EXPECT_EQ(with_length(2), "no error");
  EXPECT_PRED2(contains, with_length(0), "does not begin with '{'");
  EXPECT_PRED2(contains, with_length(3),
               "header length 3 reaches past the end of the file, which is 10 bytes long");
  EXPECT_PRED2(contains, with_length(100'000'001),
               "header length 100000001 is beyond the limit of 100000000");
  EXPECT_PRED2(contains, with_length(std::uint64_t{1} << 63), "header length 9223372036854775808 is beyond");
  EXPECT_PRED2(contains, with_length(~std::uint64_t{0}), "is beyond the limit");
  write_file_atomic(folder / "m", "1234567");
  EXPECT_PRED2(contains, io_error([&] { SafetensorsFile file(folder / "m"); }), "is 7 bytes long");
  write_file_atomic(folder / "m", "PK\x03\x04 a zip archive of torch.save");
  EXPECT_PRED2(contains, io_error([&] { SafetensorsFile file(folder / "m"); }),
               "looks like one of torch.save");
}

TEST(SafetensorsFile, RefusesHeadersThatAreNoHeaders) {
  EXPECT_REFUSAL("[]", 0, "does not begin with '{'");
  EXPECT_REFUSAL("\xef\xbb\xbf{}", 0, "does not begin with '{'");
  EXPECT_REFUSAL("{} x", 0, "(header):1:4: syntax error");
  EXPECT_REFUSAL("{\"a\xff\":1}", 0, "syntax error");
  EXPECT_REFUSAL(R"({"a":[[[[[1]]]]]})", 0, "nesting deeper than 4 levels");
  EXPECT_REFUSAL(R"({"a\u0000b":{}})", 0, "key 'a\\x00b' holds a NUL character");
  EXPECT_REFUSAL(R"({"__metadata__":{"a":1}})", 0, "__metadata__ entry 'a' is of kind integer");
  EXPECT_REFUSAL(R"({"__metadata__":[]})", 0, "__metadata__ is of kind array");
  EXPECT_REFUSAL(
      "{" + raw_entry("a", "U8", "[1]", "[0,1]") + "," + raw_entry("a", "U8", "[1]", "[0,1]") + "}", 1,
      "key 'a' occurs twice");
}

TEST(SafetensorsFile, RefusesWrongTensorEntries) {
  EXPECT_REFUSAL(R"({"a":3})", 0, "tensor 'a' is described by a value of kind integer");
  EXPECT_REFUSAL(R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1, "tensor 'a' has no field 'dtype'");
  EXPECT_REFUSAL(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a' has no field 'shape'");
  EXPECT_REFUSAL(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "tensor 'a' has no field 'data_offsets'");
  const auto refuse = [](const char* dtype, const char* shape, const char* offsets, const char* part) {
    EXPECT_REFUSAL("{" + raw_entry("a", dtype, shape, offsets) + "}", 16, part);
  };
  refuse("F128", "[1]", "[0,16]", "tensor 'a' has the unknown dtype \"F128\"; known are BOOL, F4");
  refuse("U8", "[-16]", "[0,16]", "tensor 'a' has -16 in 'shape'");
  refuse("U8", "[16.0]", "[0,16]", "tensor 'a' has 16.0 in 'shape'");
  refuse("U8", "\"16\"", "[0,16]", "tensor 'a' has 'shape' of kind string");
  refuse("U8", "[16]", "[16,0]", "tensor 'a' has 'data_offsets' [16, 0]");
  refuse("U8", "[16]", "[0,16,16]", "'data_offsets' [0, 16, 16]");
  refuse("U8", "[16]", "[-16,0]", "tensor 'a' has -16 in 'data_offsets'");
  refuse("U8", "[16]", "[0,18446744073709551632]", "does not fit 64 bits");
  refuse("F32", "[2]", "[0,16]", "of dtype F32 and shape [2] needs 8 bytes, its 'data_offsets' span 16");
  refuse("F4", "[31]", "[0,16]", "of dtype F4 and shape [31] does not end on a full byte");
  refuse("F6_E2M3", "[21]", "[0,16]", "does not end on a full byte");
}

// Products that wrap to zero have let other readers past their only check.
TEST(SafetensorsFile, RefusesShapesWhoseProductLeaves64Bits) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[2305843009213693952]", "[0,4294967296,4294967296]"}) {
    EXPECT_REFUSAL("{" + raw_entry("a", "U8", shape, "[0,0]") + "}", 0,
                   "whose size in bits does not fit 64 bits");
  }
  EXPECT_EQ(tensor_bytes(Dtype::kF4, {2, 3}), 3u);
  EXPECT_EQ(tensor_bytes(Dtype::kF6E3M2, {4}), 3u);
  EXPECT_EQ(tensor_bytes(Dtype::kF64, {}), 8u);
}

TEST(SafetensorsFile, RefusesOverlapGapAndWrongEnd) {
  const std::string a = raw_entry("a", "U8", "[4]", "[0,4]");
  EXPECT_REFUSAL("{" + a + "," + raw_entry("b", "U8", "[4]", "[2,6]") + "}", 6,
                 "tensor 'b' at bytes [2, 6) overlaps tensor 'a' at bytes [0, 4)");
  EXPECT_REFUSAL("{" + a + "," + raw_entry("b", "U8", "[4]", "[5,9]") + "}", 9,
                 "tensor 'b' at bytes [5, 9) leaves a gap after tensor 'a' at bytes [0, 4)");
  EXPECT_REFUSAL("{" + raw_entry("a", "U8", "[4]", "[1,5]") + "}", 5, "leaves a gap after the header");
  EXPECT_REFUSAL("{" + a + "}", 5, "1 bytes follow the last tensor");
  EXPECT_REFUSAL("{" + a + "}", 3, "tensor 'a' at bytes [0, 4) reaches past the end of the file");
  EXPECT_REFUSAL("{}", 1, "1 bytes follow the last tensor");
}

TEST(SafetensorsFile, AFileThatShrinksIsAnErrorThatNamesTheTensor) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
  write_raw_safetensors(path, "{" + raw_entry("a", "U8", "[4]", "[0,4]") + "}", "abcd");
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  char data[4];
  const std::string message = io_error([&] { file.read(file.at("a"), 0, 4, data); });
  EXPECT_PRED2(contains, message, "the file ends too early");
  EXPECT_PRED2(contains, message, "(tensor 'a')");
}

TEST(SafetensorsWriter, WritesInAnyOrderFromSeveralThreads) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back({"t" + std::to_string(i), i % 2 ? Dtype::kBF16 : Dtype::kF32, {i, 3}});
  }
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  ThreadPool(4).parallel_for(tensors.size(), [&](std::size_t i) {
    const TensorInfo& tensor = writer.at(tensors[tensors.size() - 1 - i].name);
    const std::string bytes(tensor.bytes(), static_cast<char>('A' + tensor.shape[0]));
    const std::size_t half = bytes.size() / 2;
    writer.write(tensor, half, bytes.size() - half, bytes.data());
    writer.write(tensor, 0, half, bytes.data());
  });
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.tensors().front().dtype, Dtype::kF32);
  for (const TensorInfo& wanted : tensors) {
    const TensorInfo& tensor = file.at(wanted.name);
    EXPECT_EQ(tensor.dtype, wanted.dtype);
    EXPECT_EQ(tensor.shape, wanted.shape);
    std::string bytes(tensor.bytes(), '\0');
    file.read(tensor, 0, bytes.size(), bytes.data());
    EXPECT_EQ(bytes, std::string(bytes.size(), static_cast<char>('A' + tensor.shape[0])));
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m.safetensors"});
}

TEST(SafetensorsWriter, LeavesNothingWithoutCommitOrWithBytesMissing) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "m", {{"a", Dtype::kU8, {4}}});
    writer.write(writer.at("a"), 0, 3, "abc");
    EXPECT_THROW(writer.write(writer.at("a"), 3, 2, "de"), Error);
    EXPECT_THROW(writer.at("b"), Error);
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, RefusesNamesItCannotWrite) {
  const TemporaryFolder folder;
  const TensorInfo tensor{"a", Dtype::kU8, {1}};
  EXPECT_THROW(SafetensorsWriter(folder / "m", {tensor, tensor}), IoError);
  EXPECT_THROW(SafetensorsWriter(folder / "m", {{"__metadata__", Dtype::kU8, {1}}}), IoError);
  EXPECT_THROW(SafetensorsWriter(folder / "m", {{std::string("a\0b", 3), Dtype::kU8, {1}}}), IoError);
  EXPECT_THROW(SafetensorsWriter(folder / "m", {{"a", Dtype::kF4, {1}}}), IoError);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace phalanx
