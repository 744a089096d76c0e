// A training run as `phalanx finetune` does it, from C++.
#pragma once
#include <string>

namespace phalanx {

enum class FinetuneEnd { kFinished, kInterrupted };

// Trains as the recipe says: a JSON object with the fields of docs/command-line.md. `model` is a folder, `data.train` and
// `data.validation` name folders that `phalanx prepare` wrote, and `output` receives checkpoints, metrics.jsonl and the exported
// model. Resumes from the newest checkpoint in `output`. Ends early after SIGTERM or SIGINT, saving first. Throws ConfigError,
// IoError, Error.
//
// On the CPU the bits of the result do not depend on the number of threads, and a resumed run equals an unbroken one, provided
// that MKL sums in a fixed order: it reads MKL_CBWR at the first matrix product of the process. This function sets it (unless it
// is set); a program that multiplies matrices before has to start with MKL_CBWR=AUTO,STRICT.
FinetuneEnd finetune(const std::string& recipe_json);

}  // namespace phalanx
