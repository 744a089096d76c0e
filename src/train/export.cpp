#include "train/export.h"

#include "core/error.h"
#include "core/log.h"
#include "models/causal_lm.h"
#include "train/training_checkpoint.h"

namespace phalanx {

void export_model(const std::string& source, const std::string& output) {
  const std::vector<std::string> checkpoints = list_checkpoints(source + "/checkpoints");
  const std::string folder = checkpoints.empty() ? source : checkpoints.back();
  const Json progress = read_progress(folder);
  const Precision precision =
      precision_from_name(progress.at("config").at("train").at("precision").as_string());
  CausalLM model = CausalLM::without_weights(progress.at("model").as_string(), weight_type(precision));
  load_checkpoint_weights(folder, named_weights(model.parameters()));
  model.save_pretrained(output);
  log_info("wrote ", output, ", step ", progress.at("step").as_integer(), " of ", folder);
}

}  // namespace phalanx
