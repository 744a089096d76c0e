// The commands whose work is Python's: their options are declared there.
#include "commands.h"

namespace phalanx {
namespace {

Command python_command(const char* name, const char* summary) {
  Command command;
  command.name = name;
  command.summary = summary;
  command.python = true;
  return command;
}

}  // namespace

Command prepare_command() {
  return python_command("prepare", "turn chat data into token shards (finetune does it by itself)");
}

Command plot_command() { return python_command("plot", "draw the curves of runs into a PNG"); }

Command demo_command() {
  return python_command("demo", "train a tiny model on this machine and let it answer");
}

}  // namespace phalanx
