#include "bind/engine_c_api.h"

#include "core/error.h"
#include "core/log.h"
#include "models/causal_lm.h"
#include "train/export.h"
#include "train/trainer.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>

namespace phalanx {
namespace {

void print_log(LogLevel level, std::string_view message) {
  if (level >= LogLevel::kWarning) {
    std::cerr << log_level_name(level) << ": ";
  }
  (level >= LogLevel::kWarning ? std::cerr : std::cout) << message << std::endl;
}

int finetune(const Json& json) {
  // Read when torch first asks the GPU for memory: without it the allocator holds a fifth more than it hands out.
  ::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
  Trainer trainer(run_config_from_json(json, "the resolved configuration"));
  return trainer.run() == RunEnd::kFinished ? kPhalanxOk : kPhalanxInterrupted;
}

int evaluate(Json json) {
  json.set("output", "");
  Trainer trainer(run_config_from_json(json, "the resolved configuration"));
  const Trainer::Evaluation result = trainer.evaluate();
  std::cout << "loss " << result.loss << "  perplexity " << std::exp(result.loss) << "  accuracy "
            << result.accuracy << "  supervised tokens " << result.supervised_tokens << "  samples "
            << result.samples << "  dropped " << result.dropped_samples << std::endl;
  return kPhalanxOk;
}

int run(std::string_view command, const Json& json) {
  if (command == "finetune") {
    return finetune(json);
  }
  if (command == "eval") {
    return evaluate(json);
  }
  if (command == "export") {
    export_model(json.at("source").as_string(), json.at("output").as_string(),
                 static_cast<std::uint64_t>(json.at("max_shard_bytes").as_integer()));
    return kPhalanxOk;
  }
  fail("the engine has no command ", command);
}

int report(int code, const char* text, char* message, size_t message_size) {
  if (message != nullptr && message_size > 0) {
    std::snprintf(message, message_size, "%s", text);
  }
  return code;
}

}  // namespace
}  // namespace phalanx

int phalanx_engine_run(const char* command, const char* json, char* message, size_t message_size) {
  using namespace phalanx;
  const LogSink former = set_log_sink(print_log);
  int code = kPhalanxFailed;
  try {
    code = run(command, Json::parse(json, "the resolved configuration"));
  } catch (const ConfigError& error) {
    code = report(kPhalanxBadInput, error.what(), message, message_size);
  } catch (const std::exception& error) {
    code = report(kPhalanxFailed, error.what(), message, message_size);
  }
  set_log_sink(former);
  return code;
}
