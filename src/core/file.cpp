#include "core/file.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace phalanx {
namespace {

constexpr int kNewFileMode = 0666;  // the user's umask takes its part

int open_retrying(const std::string& path, int flags, int mode = 0) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

void sync_or_throw(const FileDescriptor& file, const std::string& path) {
  while (::fsync(file.get()) != 0) {
    const int error = errno;
    PHALANX_CHECK(error == EINTR, IoError, path, ": cannot be made durable (fsync)", errno_text(error));
  }
}

}  // namespace

std::string errno_text(int error) { return ": " + std::generic_category().message(error); }

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::close() {
  if (is_open()) {
    ::close(release());
  }
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  PHALANX_CHECK(path_.find('\0') == std::string::npos, IoError, in_quotes(path_),
                ": a file name cannot hold a NUL character");
  file_ = FileDescriptor(open_retrying(path_, O_RDONLY | O_NONBLOCK));  // a FIFO must not block
  PHALANX_CHECK(file_.is_open(), IoError, path_, ": cannot be opened for reading", errno_text(errno));
  struct stat info {};
  PHALANX_CHECK(::fstat(file_.get(), &info) == 0, IoError, path_, ": cannot be examined", errno_text(errno));
  PHALANX_CHECK(S_ISREG(info.st_mode), IoError, path_, ": is no regular file",
                S_ISDIR(info.st_mode) ? " but a folder" : "");
  size_ = static_cast<std::uint64_t>(info.st_size);
}

void InputFile::pread_exact(void* destination, std::size_t bytes, std::uint64_t offset) const {
  auto* at = static_cast<char*>(destination);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t n = ::pread(file_.get(), at + got, bytes - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    PHALANX_CHECK(n >= 0, IoError, path_, ": reading ", bytes, " bytes at offset ", offset, " failed after ",
                  got, errno_text(errno));
    PHALANX_CHECK(n > 0, IoError, path_, ": the file ends too early: wanted ", bytes, " bytes at offset ",
                  offset, ", got ", got, "; it was cut off, or changed while being read");
    got += static_cast<std::size_t>(n);
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  do {
    temporary_ = temporary_sibling(path_, "tmp");
    file_ = FileDescriptor(open_retrying(temporary_, O_RDWR | O_CREAT | O_EXCL, kNewFileMode));
  } while (!file_.is_open() && errno == EEXIST);
  if (!file_.is_open()) {
    const int error = errno;
    temporary_.clear();
    fail<IoError>(path_, ": cannot be created", errno_text(error),
                  "; choose a folder that exists and that you may write to");
  }
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::reserve(std::uint64_t bytes) {
  if (bytes == 0) {
    return;
  }
  int error;
  do {
    error = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  // A file system without preallocation finds a full disk later, while writing.
  PHALANX_CHECK(error == 0 || error == EOPNOTSUPP || error == EINVAL, IoError, path_, ": no room for ", bytes,
                " bytes", errno_text(error), "; free space or choose another folder");
}

void AtomicFile::pwrite_exact(const void* source, std::size_t bytes, std::uint64_t offset) {
  const auto* at = static_cast<const char*>(source);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pwrite(file_.get(), at + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    PHALANX_CHECK(n > 0, IoError, path_, ": writing ", bytes, " bytes at offset ", offset, " failed after ",
                  done, errno_text(n < 0 ? errno : ENOSPC), "; the file as it was before is untouched");
    done += static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  sync_or_throw(file_, path_);
  PHALANX_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, IoError, path_, ": cannot be put in place",
                errno_text(errno));
  temporary_.clear();
  file_.close();
  sync_directory(parent_directory(path_));
}

std::string read_text(const std::string& path, std::uint64_t max_bytes) {
  const InputFile file(path);
  PHALANX_CHECK(file.size() <= max_bytes, IoError, path, ": is ", file.size(), " bytes long, at most ",
                max_bytes, " are allowed here");
  std::string text(file.size(), '\0');
  file.pread_exact(text.data(), text.size(), 0);
  return text;
}

void write_file_atomic(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.pwrite_exact(content.data(), content.size(), 0);
  file.commit();
}

void sync_directory(const std::string& path) {
  const FileDescriptor folder(open_retrying(path, O_RDONLY | O_DIRECTORY));
  PHALANX_CHECK(folder.is_open(), IoError, path, ": the folder cannot be opened", errno_text(errno));
  sync_or_throw(folder, path);
}

std::string parent_directory(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string temporary_sibling(const std::string& path, std::string_view tag) {
  static std::atomic<unsigned> counter{0};
  const std::filesystem::path target(path);
  const std::string name =
      concat(".", target.filename().string().substr(0, 200), ".", tag, "-", ::getpid(), "-", counter++);
  return (target.parent_path() / name).string();
}

}  // namespace phalanx
