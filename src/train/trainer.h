// A training run, from the resolved configuration to the exported model.
#pragma once
#include "config/run_config.h"
#include "parallel/mesh.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace phalanx {

enum class RunEnd { kFinished, kInterrupted };

class Trainer {
 public:
  // Loads the model and opens the data: `config.model` is a folder, `config.data.train` and `.validation` are folders that
  // `phalanx prepare` wrote. Resumes as config.checkpoint.resume says. Throws ConfigError and IoError.
  // With several ranks in `mesh` every call is collective, and the first rank alone writes.
  explicit Trainer(const RunConfig& config, const Mesh& mesh = {});
  ~Trainer();

  // Trains to the last step, or to the next step boundary after SIGTERM or SIGINT, saving before it returns. Throws Error when
  // loss or gradient are not finite, before any weight is touched.
  RunEnd run();

  // Loss per supervised token, perplexity and accuracy over config.data.validation.
  struct Evaluation {
    double loss = 0.0;
    double accuracy = 0.0;
    std::int64_t supervised_tokens = 0;
    std::int64_t samples = 0;
    std::int64_t dropped_samples = 0;  // too long, not among `samples`
  };
  Evaluation evaluate();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx
