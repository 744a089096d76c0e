// phalanx finetune: from a model and chat data to a trained model. All checks come before torch is loaded, and nothing is
// written before all checks have passed.
#include "bind/engine_c_api.h"
#include "commands.h"
#include "config/field.h"
#include "core/log.h"
#include "data_files.h"
#include "engine.h"
#include "models/spec/expert_shares.h"
#include "preflight.h"
#include "ranks.h"
#include "run_folder.h"
#include "run_options.h"
#include "train/plan/memory_plan.h"

#include <iostream>

namespace phalanx {
namespace {

int finetune(const Arguments& arguments) {
  if (arguments.has("--help-fields")) {
    std::cout << field_reference();
    return kPhalanxOk;
  }
  const RunConfig config = run_config_of(arguments);
  for (const char* field : {"model", "data.train", "output"}) {
    require_field(config, field);
  }
  check_run_folder(config);
  const CheckedModel model = check_inputs(config);
  check_expert_shares(model.spec, config.distributed.ep_size);
  const AvailableMemory available = available_memory(config.train.device);
  check_memory(model.spec, config, available);

  RunConfig resolved = config;  // what the engine gets: folders instead of names and raw files
  resolved.model = model.folder;
  resolved.data = prepare_data(config.data, model.folder);
  check_run_data(resolved, model.spec);
  log_info("memory plan\n",
           memory_table(plan_training_memory(model.spec, config, available.on_gpu), available));
  if (arguments.has("--dry-run")) {
    std::cout << run_config_to_json(resolved).dump(2) << "\n";
    log_info("dry run: everything is in order; without --dry-run the training starts");
    return kPhalanxOk;
  }
  const RunFolder folder(config);
  if (config.distributed.ranks > 1) {
    return run_ranks(run_config_to_json(resolved), config.distributed.ranks);
  }
  return run_engine("finetune", run_config_to_json(resolved));
}

}  // namespace

Command finetune_command() {
  Command command;
  command.name = "finetune";
  command.summary = "train a model on chat data";
  command.options = run_options();
  command.options.push_back(
      {"--dry-run", "", "do everything but train; print the resolved configuration", Takes::kNothing, false});
  command.options.push_back({"--help-fields", "", "list all fields of a recipe", Takes::kNothing, false});
  command.examples =
      "  phalanx finetune --model Qwen3-30B-A3B --data chat.jsonl --output runs/first\n"
      "  phalanx finetune --config recipe.yaml --set optimizer.beta2=0.98 --output runs/second\n"
      "  phalanx finetune --model tiny --data chat.jsonl --validation-fraction 0.05 --eval-every 50 --output "
      "runs/third\n"
      "After SIGTERM or Ctrl-C the same command goes on where it stopped.\n";
  command.run = finetune;
  return command;
}

}  // namespace phalanx
