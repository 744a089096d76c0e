// One function per subcommand; each file declares what its command takes and what it does.
#pragma once
#include "command_line.h"

namespace phalanx {

Command finetune_command();
Command eval_command();
Command export_command();
Command inspect_command();
Command plan_command();
Command prepare_command();
Command plot_command();
Command demo_command();

}  // namespace phalanx
