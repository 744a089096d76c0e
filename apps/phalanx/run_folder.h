// The folder of a run: who may use it, and what it was started with.
//
//   config.json    the configuration as the person gave it, every default filled in; usable as --config
//   lock           held while a process trains there: its pid and host
//   checkpoints/, metrics.jsonl, model/     written by the engine
#pragma once
#include "config/run_config.h"
#include "core/file.h"

#include <string>

namespace phalanx {

// Whether `config.output` can take this run; creates nothing. Refused: a file or a foreign folder in its place, a place that
// cannot be written, a folder where another process trains, a run with checkpoints that was started with other values of
// fields that must agree. Throws ConfigError.
void check_run_folder(const RunConfig& config);

// Creates the folder, locks it for the life of this object and writes config.json. What is left of a run that wrote nothing else,
// because it failed before its first step, is removed at the end.
class RunFolder {
 public:
  explicit RunFolder(const RunConfig& config);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

 private:
  std::string output_;
  bool created_ = false;  // the folder, not only what is in it
  FileDescriptor lock_;
};

}  // namespace phalanx
