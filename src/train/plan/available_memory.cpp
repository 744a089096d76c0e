// How much memory this process may still take: of the machine and of its control groups (containers, batch systems).
#include "core/error.h"
#include "train/plan/memory_plan.h"

#include <fstream>
#include <optional>
#include <sstream>

namespace phalanx {
namespace {

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) {
    return value;
  }
  return std::nullopt;  // absent, or "max": no limit
}

// The value behind `key` in a file of "key value" lines.
std::optional<std::uint64_t> read_keyed(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  std::uint64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::istringstream words(line); words >> name >> value && name == key) {
      return value;
    }
  }
  return std::nullopt;
}

// Limit minus use, where file pages that can be dropped do not count as use.
std::optional<std::uint64_t> left_in_group(const std::string& folder, const char* limit_name,
                                           const char* use_name, const char* droppable_key) {
  const auto limit = read_number(folder + "/" + limit_name), use = read_number(folder + "/" + use_name);
  if (!limit || !use) {
    return std::nullopt;
  }
  const std::uint64_t droppable = read_keyed(folder + "/memory.stat", droppable_key).value_or(0);
  const std::uint64_t held = *use - std::min(*use, droppable);
  return *limit - std::min(*limit, held);
}

// Paths of this process's groups below the mount point: version 2 is the line "0::PATH", version 1 "N:memory:PATH".
std::string group_path(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second != std::string::npos && line.substr(first + 1, second - first - 1) == controller) {
      return line.substr(second + 1);
    }
  }
  return "";
}

}  // namespace

AvailableMemory available_host_memory() {
  const auto free_bytes = read_keyed("/proc/meminfo", "MemAvailable:");
  PHALANX_CHECK(free_bytes, IoError, "/proc/meminfo: no MemAvailable; mount /proc");
  AvailableMemory available{*free_bytes * 1024, "the machine's free memory"};
  const auto consider = [&](const std::optional<std::uint64_t>& left) {
    if (left && *left < available.bytes) {
      available = {*left, "the limit of the control group"};
    }
  };
  // A limit may sit on any group above; inside a container the own group is the mount point itself.
  for (std::string path = group_path("");; path = path.substr(0, path.rfind('/'))) {
    consider(left_in_group("/sys/fs/cgroup" + path, "memory.max", "memory.current", "inactive_file"));
    if (path.find('/') == std::string::npos) {
      break;
    }
  }
  for (const std::string& path : {group_path("memory"), std::string()}) {
    consider(left_in_group("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_inactive_file"));
  }
  return available;
}

}  // namespace phalanx
