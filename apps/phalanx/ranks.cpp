#include "ranks.h"

#include "core/engine_library.h"
#include "core/file.h"
#include "python_step.h"

#include <cstdlib>
#include <filesystem>
#include <unistd.h>

namespace phalanx {
namespace {

// `python -m phalanx` under torchrun: the first rank waits for this file, and closes our stdin when all ranks have ended.
constexpr const char* kHandover = "PHALANX_HANDOVER";

void hand_over(const std::string& path, const std::string& config) {
  write_file_atomic(path, config);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

}  // namespace

int run_ranks(const Json& config, std::int64_t ranks) {
  if (const char* path = std::getenv(kHandover)) {
    hand_over(path, config.dump());
    return 0;
  }
  // Python would look beside its package, which a program in a build tree does not use.
  setenv("PHALANX_LIBRARY", find_engine(this_program()).library.c_str(), /*overwrite=*/1);
  const std::string file =
      (std::filesystem::temp_directory_path() / ("phalanx-ranks-" + std::to_string(getpid()) + ".json"))
          .string();
  write_file_atomic(file, config.dump());
  const int code = run_python_program("phalanx.launch", {std::to_string(ranks), file});
  std::filesystem::remove(file);
  return code;
}

}  // namespace phalanx
