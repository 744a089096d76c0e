#include "io/atomic_directory.h"

#include "core/error.h"
#include "core/file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <utility>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

bool is_taken(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return false;
  }
  return !fs::is_directory(status) || !fs::is_empty(path, error) || error;
}

}  // namespace

AtomicDirectory::AtomicDirectory(std::string target, ExistingFolder existing)
    : target_(without_trailing_slash(std::move(target))), existing_(existing) {
  PHALANX_CHECK(existing_ == ExistingFolder::kReplace || !is_taken(target_), IoError, target_,
                ": exists already and is not empty; choose another folder or remove it");
  std::error_code error;
  fs::create_directories(parent_directory(target_), error);
  PHALANX_CHECK(!error, IoError, parent_directory(target_),
                ": the folder cannot be created: ", error.message());
  do {
    temporary_ = temporary_sibling(target_, "partial");
  } while (::mkdir(temporary_.c_str(), 0777) != 0 && errno == EEXIST);
  if (!fs::is_directory(temporary_)) {
    temporary_.clear();
    fail<IoError>(target_, ": cannot be created", errno_text(errno),
                  "; choose a folder that you may write to");
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void AtomicDirectory::commit() {
  sync_directory(temporary_);
  const bool exchange = existing_ == ExistingFolder::kReplace && is_taken(target_);
  const unsigned flags = exchange ? RENAME_EXCHANGE : 0;
  PHALANX_CHECK(::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), flags) == 0, IoError,
                target_, ": cannot be put in place", errno_text(errno));
  sync_directory(parent_directory(target_));
  const std::string old = std::exchange(temporary_, "");
  if (exchange) {
    std::error_code ignored;
    fs::remove_all(old, ignored);
  }
}

}  // namespace phalanx
