// phalanx export: a Hugging Face folder from a run or one of its checkpoints.
#include "commands.h"
#include "core/error.h"
#include "engine.h"

#include <filesystem>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

int export_model(const Arguments& arguments) {
  const std::string source = arguments.get("run"), output = arguments.get("--output");
  PHALANX_CHECK(fs::is_directory(source), ConfigError, source,
                ": no such folder; name a run (the --output of finetune) or one of its checkpoints");
  PHALANX_CHECK(!fs::exists(output) || (fs::is_directory(output) && fs::is_empty(output)), ConfigError,
                output, ": already exists; choose another --output");
  Json input = Json::object();
  input.set("source", source);
  input.set("output", output);
  return run_engine("export", input);
}

}  // namespace

Command export_command() {
  Command command;
  command.name = "export";
  command.summary = "write a Hugging Face folder from a run or a checkpoint";
  command.options = {
      {"run", "RUN", "the run folder, or one of its checkpoints", Takes::kOne, true},
      {"--output", "DIR", "folder to write; must not exist", Takes::kOne, true},
  };
  command.examples =
      "  phalanx export runs/first --output my-model\n"
      "  phalanx export runs/first/checkpoints/step-100 --output my-model-100\n";
  command.run = export_model;
  return command;
}

}  // namespace phalanx
