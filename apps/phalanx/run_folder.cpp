#include "run_folder.h"

#include "config/field.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/suggest.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";

fs::path config_file(const fs::path& output) { return output / "config.json"; }
fs::path lock_file(const fs::path& output) { return output / "lock"; }

bool has_checkpoints(const fs::path& output) {
  std::error_code error;  // no such folder: none
  for (const fs::directory_entry& entry : fs::directory_iterator(output / "checkpoints", error)) {
    if (entry.is_directory() && !entry.path().filename().string().starts_with('.')) {
      return true;
    }
  }
  return false;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_still_there(const FileDescriptor& file, const fs::path& path) {
  struct stat opened {
  }, named{};
  return fstat(file.get(), &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino;
}

// The lock is the kernel's: it ends with the process that holds it, so a lock file left by a killed run means nothing. A run
// removes the file at its end, perhaps between the opening and the locking here: then it is taken anew.
FileDescriptor take_lock(const fs::path& path, int open_flags, int kind) {
  FileDescriptor file(open(path.c_str(), open_flags | O_CLOEXEC, 0644));
  PHALANX_CHECK(file.is_open(), ConfigError, path.string(), errno_text(errno), "; choose another --output");
  if (flock(file.get(), kind | LOCK_NB) == 0) {
    const bool is_current = (open_flags & O_CREAT) == 0 || is_still_there(file, path);
    return is_current ? std::move(file) : take_lock(path, open_flags, kind);
  }
  PHALANX_CHECK(errno == EWOULDBLOCK, ConfigError, path.string(), ": cannot be locked", errno_text(errno),
                "; choose an --output on a file system with locks");
  const Json holder = Json::parse_file(path.string());
  fail<ConfigError>(path.parent_path().string(), ": another job trains here: process ",
                    holder.at("pid").as_integer(), " on host ", holder.at("host").as_string(),
                    "; wait for it, stop it, or choose another --output");
}

// Tries the write for real: access() says yes to root even where nobody can write.
void check_writable(const fs::path& output) {
  fs::path folder = output;
  while (!fs::exists(folder)) {
    folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  }
  PHALANX_CHECK(fs::is_directory(folder), ConfigError, output.string(), ": ", folder.string(),
                " is a file, not a folder; choose another --output");
  std::string probe = (folder / ".phalanx-probe-XXXXXX").string();
  PHALANX_CHECK(mkdtemp(probe.data()) != nullptr, ConfigError, output.string(), ": ", folder.string(),
                " cannot be written", errno == ENOENT ? ": it is no folder of a disk" : errno_text(errno),
                "; choose another --output or change the permissions");
  rmdir(probe.c_str());
}

const Json* field_of(const Json& config, const std::string& name) {
  const std::size_t dot = name.find('.');
  const Json* section = dot == std::string::npos ? &config : config.find(name.substr(0, dot));
  return section == nullptr ? nullptr : section->find(name.substr(dot == std::string::npos ? 0 : dot + 1));
}

void check_same_run(const RunConfig& config) {
  const std::string path = config_file(config.output).string();
  const Json before = Json::parse_file(path);
  const Json now = run_config_to_json(config);
  std::vector<std::string> refused, allowed;
  for (const Field& field : run_config_fields()) {
    const Json *old_value = field_of(before, field.name), *new_value = field_of(now, field.name);
    if (field.name != "output" && (old_value == nullptr || *old_value != *new_value)) {
      const std::string had = old_value == nullptr ? "nothing" : old_value->dump();
      (field.on_resume == OnResume::kMustAgree ? refused : allowed)
          .push_back(concat("  ", field.name, ": the run has ", had, ", this command ", new_value->dump()));
    }
  }
  PHALANX_CHECK(refused.empty(), ConfigError, path, ": ", config.output,
                " holds a run that was started with other values:\n", join(refused, "\n"),
                "\nuse the same values to go on with it (`--config ", path, "`), or choose another --output");
  if (!allowed.empty()) {
    log_info(config.output, ": the run goes on with changed values:\n", join(allowed, "\n"));
  }
}

void check_existing_run(const RunConfig& config) {
  const fs::path output = config.output;
  const bool has_run =
      fs::exists(lock_file(output)) || fs::exists(output / kMetrics) || has_checkpoints(output);
  PHALANX_CHECK(fs::exists(config_file(output)) && has_run, ConfigError, config.output,
                ": the folder is not empty and holds no run of phalanx; choose another --output");
  if (fs::exists(lock_file(output))) {
    take_lock(lock_file(output), O_RDONLY, LOCK_SH);
  }
  if (has_checkpoints(output)) {
    PHALANX_CHECK(config.checkpoint.resume != "never", ConfigError, config.output,
                  ": the folder holds checkpoints of a run, and checkpoint.resume is never; choose another "
                  "--output, or drop "
                  "--resume never to go on");
    check_same_run(config);
  }
}

}  // namespace

void check_run_folder(const RunConfig& config) {
  const fs::path output = config.output;
  if (fs::is_directory(output) && !fs::is_empty(output)) {
    check_existing_run(config);
  }
  check_writable(output);
}

RunFolder::RunFolder(const RunConfig& config) : output_(config.output) {
  const fs::path output = config.output;
  std::error_code error;
  created_ = fs::create_directories(output, error);
  PHALANX_CHECK(!error, ConfigError, config.output, ": cannot be created: ", error.message(),
                "; choose another --output");
  lock_ = take_lock(lock_file(output), O_RDWR | O_CREAT, LOCK_EX);
  Json holder = Json::object();
  holder.set("pid", static_cast<std::int64_t>(getpid()));
  holder.set("host", host_name());
  const std::string text = holder.dump() + "\n";
  const bool written = ftruncate(lock_.get(), 0) == 0 &&
                       pwrite(lock_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  PHALANX_CHECK(written, IoError, lock_file(output).string(), errno_text(errno));
  write_file_atomic(config_file(output).string(), run_config_to_json(config).dump(2) + "\n");
}

RunFolder::~RunFolder() {
  std::error_code error;  // what cannot be removed may stay
  const bool wrote_something = fs::exists(fs::path(output_) / kMetrics) || has_checkpoints(output_);
  if (!wrote_something) {
    fs::remove(config_file(output_), error);
    fs::remove(fs::path(output_) / "checkpoints", error);
  }
  fs::remove(lock_file(output_), error);
  if (created_ && !wrote_something) {
    fs::remove(output_, error);  // only if it is empty
  }
}

}  // namespace phalanx
