// A training run as `phalanx finetune` does it, from C++.
#pragma once
#include <string>

namespace phalanx {

enum class FinetuneEnd { kFinished, kInterrupted };

// Trains as the recipe says: a JSON object with the fields of docs/command-line.md. `model` is a folder, `data.train` and
// `data.validation` name folders that `phalanx prepare` wrote, and `output` receives checkpoints, metrics.jsonl and the exported
// model. Resumes from the newest checkpoint in `output`. Ends early after SIGTERM or SIGINT, saving first. Throws ConfigError,
// IoError, Error.
FinetuneEnd finetune(const std::string& recipe_json);

}  // namespace phalanx
