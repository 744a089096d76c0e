#include "core/file.h"

#include "core/error.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sys/resource.h>
#include <sys/stat.h>

namespace phalanx {
namespace {

template <class Body>
std::string io_error(Body body) {
  try {
    body();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(InputFile, ReadsAnyPart) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "0123456789");
  const InputFile file(folder / "f");
  char part[3];
  file.pread_exact(part, 3, 4);
  EXPECT_EQ(std::string(part, 3), "456");
  EXPECT_EQ(file.size(), 10u);
}

TEST(InputFile, NamesOffsetWantedAndGotWhenTheFileEndsTooEarly) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "0123456789");
  const InputFile file(folder / "f");
  std::filesystem::resize_file(folder / "f", 6);  // shrinks while open
  char part[8];
  const std::string message = io_error([&] { file.pread_exact(part, 8, 2); });
  EXPECT_TRUE(contains(message, folder / "f")) << message;
  EXPECT_TRUE(contains(message, "wanted 8 bytes at offset 2, got 4")) << message;
}

TEST(InputFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(io_error([&] { InputFile(folder / "absent"); }), "No such file or directory"));
  EXPECT_TRUE(contains(io_error([&] { InputFile file(folder.path()); }), "is no regular file but a folder"));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(contains(io_error([&] { InputFile(folder / "fifo"); }), "is no regular file"));
  EXPECT_TRUE(contains(io_error([] { InputFile(std::string("a\0b", 3)); }), "'a\\x00b'"));
}

TEST(ReadText, RefusesAFileBeyondTheLimit) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "0123456789");
  EXPECT_EQ(read_text(folder / "f"), "0123456789");
  EXPECT_TRUE(contains(io_error([&] { read_text(folder / "f", 9); }), "is 10 bytes long, at most 9"));
}

TEST(WriteFileAtomic, ReplacesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "old");
  write_file_atomic(folder / "f", "new");
  EXPECT_EQ(read_text(folder / "f"), "new");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"f"});
}

TEST(WriteFileAtomic, KeepsTheOldFileWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "old");
  // A limit on the file size stands for the full disk: write fails half way.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = io_error([&] { write_file_atomic(folder / "f", std::string(5000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_TRUE(contains(message, folder / "f")) << message;
  EXPECT_TRUE(contains(message, "writing 5000 bytes at offset 0 failed after 1000: File too large"))
      << message;
  EXPECT_EQ(read_text(folder / "f"), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"f"});
}

TEST(WriteFileAtomic, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  const std::string message = io_error([&] { write_file_atomic(folder / "no/f", "x"); });
  EXPECT_TRUE(contains(message, folder / "no/f")) << message;
  EXPECT_TRUE(contains(message, "No such file or directory")) << message;
}

TEST(AtomicFile, IsRemovedWithoutCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "f");
    file.reserve(100);
    file.pwrite_exact("abc", 3, 50);
    EXPECT_EQ(folder.names().size(), 1u);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(Paths, ParentAndTemporarySibling) {
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("a/b"), "a");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_NE(temporary_sibling("x/f", "tmp"), temporary_sibling("x/f", "tmp"));
  EXPECT_TRUE(temporary_sibling("x/f", "tmp").starts_with("x/.f.tmp-"));
}

}  // namespace
}  // namespace phalanx
