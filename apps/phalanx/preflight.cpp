#include "preflight.h"

#include "core/error.h"
#include "data_files.h"
#include "model_folder.h"
#include "run_options.h"

namespace phalanx {

CheckedModel check_inputs(const RunConfig& config) {
  require_field(config, "model");
  check_data_files(config.data);
  CheckedModel model;
  model.folder = find_model(config.model);
  model.spec = load_model_spec(model.folder);
  if (needs_tokenizer(config.data)) {
    check_tokenizer_files(model.folder);
  }
  PHALANX_CHECK(config.data.sequence_length <= model.spec.max_positions, ConfigError, model.folder,
                "/config.json: max_position_embeddings is ", model.spec.max_positions,
                ", less than data.sequence_length = ", config.data.sequence_length,
                "; write --sequence-length ", model.spec.max_positions, " or less");
  return model;
}

}  // namespace phalanx
