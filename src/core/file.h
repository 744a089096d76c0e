// Files by descriptor: exact reads, and writes that are there whole or not at all. Every error names the file
// and the reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace phalanx {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_ = -1;
};

// A regular file open for reading; several threads may read at once.
class InputFile {
 public:
  explicit InputFile(std::string path);  // throws IoError when it cannot be opened or is no regular file

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  // All `bytes` from `offset`, or IoError with file, offset, wanted and got.
  void pread_exact(void* destination, std::size_t bytes, std::uint64_t offset) const;

 private:
  std::string path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// A file under a temporary name beside `path`; commit() makes it durable and gives it its name. Without
// commit it is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  // Reserves the blocks of the whole file, so that a full disk is an error now and not after an hour of
  // writing.
  void reserve(std::uint64_t bytes);
  void pwrite_exact(const void* source, std::size_t bytes, std::uint64_t offset);  // from any thread
  // fsync, rename over `path`, fsync of the folder.
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty once committed
  FileDescriptor file_;
};

// The whole file. Throws IoError when it is larger than `max_bytes`.
std::string read_text(const std::string& path, std::uint64_t max_bytes = std::uint64_t{1} << 30);

void write_file_atomic(const std::string& path, std::string_view content);

// Makes the names in a folder durable.
void sync_directory(const std::string& path);

// The folder that holds `path`: "." for a bare name.
std::string parent_directory(const std::string& path);

// `path` with its last part replaced by ".<name>.<tag>-<process>-<number>", unused by this process: hidden,
// on the same disk.
std::string temporary_sibling(const std::string& path, std::string_view tag);

// ": No such file or directory" and the like, for `error` of errno.
std::string errno_text(int error);

}  // namespace phalanx
