// phalanx plan: what a run will hold in memory.
#include "bind/engine_c_api.h"
#include "commands.h"
#include "model_folder.h"
#include "run_options.h"
#include "train/plan/memory_plan.h"

#include <iostream>

namespace phalanx {
namespace {

int plan(const Arguments& arguments) {
  const RunConfig config = run_config_of(arguments);
  require_field(config, "model");
  const ModelSpec spec = read_model_spec(find_model(config.model));
  const AvailableMemory available = available_memory(config.train.device);
  const MemoryPlan plan = plan_training_memory(spec, config, available.on_gpu);
  const int code = plan.total() > available.bytes ? kPhalanxBadInput : kPhalanxOk;
  if (arguments.has("--json")) {
    std::cout << memory_json(plan, available).dump(2) << "\n";
    return code;
  }
  std::cout << spec.family << ", " << spec.num_parameters() << " parameters, " << config.train.precision
            << ", " << config.train.micro_batch_size << " x " << config.data.sequence_length
            << " tokens a micro-batch\n"
            << memory_table(plan, available);
  if (code != kPhalanxOk) {
    std::cout << "It does not fit.\n";
    for (const std::string& way : ways_to_fit(spec, config, available)) {
      std::cout << "  It fits with " << way << "\n";
    }
  }
  return code;
}

}  // namespace

Command plan_command() {
  Command command;
  command.name = "plan";
  command.summary = "show what a run will hold in memory, and what would make it fit";
  command.options =
      run_options({"model", "data.sequence_length", "train.micro_batch_size", "train.accumulation",
                   "train.precision", "train.device", "train.recompute", "optimizer.states"});
  command.options.push_back({"--json", "", "print JSON", Takes::kNothing, false});
  command.examples =
      "  phalanx plan --model Qwen3-30B-A3B --precision bf16_master --sequence-length 4096\n"
      "  phalanx plan --config recipe.yaml --json\n";
  command.run = plan;
  return command;
}

}  // namespace phalanx
