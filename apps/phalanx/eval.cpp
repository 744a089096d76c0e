// phalanx eval: the loss of a model over data.
#include "commands.h"
#include "core/error.h"
#include "data_files.h"
#include "engine.h"
#include "preflight.h"
#include "run_options.h"

namespace phalanx {
namespace {

int eval(const Arguments& arguments) {
  RunConfig config = run_config_of(arguments);
  if (arguments.has("--data")) {
    config.data.validation = config.data.train;
  }
  config.data.train.clear();
  config.data.validation_fraction = 0.0;
  PHALANX_CHECK(!config.data.validation.empty(), ConfigError,
                "data.validation is not set: eval measures on it; write `--data FILE`");
  const CheckedModel model = check_inputs(config);
  config.data = prepare_data(config.data, model.folder);
  config.model = model.folder;
  check_run_data(config, model.spec);
  config.output.clear();
  return run_engine("eval", run_config_to_json(config));
}

}  // namespace

Command eval_command() {
  Command command;
  command.name = "eval";
  command.summary = "measure the loss of a model over data";
  command.options = run_options({"model", "data.train", "data.format", "data.train_on", "data.chat_template",
                                 "data.sequence_length", "data.on_long", "train.micro_batch_size",
                                 "train.precision", "train.threads"});
  command.examples =
      "  phalanx eval --model OUT/model --data held_out.jsonl\n"
      "  phalanx eval --model Qwen3-30B-A3B --data prepared/ --sequence-length 4096\n";
  command.run = eval;
  return command;
}

}  // namespace phalanx
