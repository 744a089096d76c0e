#include "train/export.h"

#include "config/run_config.h"
#include "core/error.h"
#include "core/log.h"
#include "models/causal_lm.h"
#include "train/training_checkpoint.h"

namespace phalanx {

void export_model(const std::string& source, const std::string& output, std::uint64_t max_shard_bytes) {
  const std::string folder = find_checkpoint(source);
  const Json progress = read_progress(folder);
  const RunConfig config = run_config_from_json(progress.at("config"), folder + "/progress.json");
  const Precision precision = precision_from_name(config.train.precision);
  CausalLM model = CausalLM::without_weights(progress.at("model").as_string(), weight_type(precision));
  load_checkpoint_weights(folder, named_weights(model.parameters()));
  SaveOptions options;
  options.max_shard_bytes = max_shard_bytes;
  options.chat_template = config.data.chat_template;
  model.save_pretrained(output, options);
  log_info("wrote ", output, ", step ", progress.at("step").as_integer(), " of ", folder);
}

}  // namespace phalanx
