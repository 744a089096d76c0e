#include "preflight.h"

#include "core/convert.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "data_files.h"
#include "io/hf_checkpoint.h"
#include "model_folder.h"
#include "models/spec/weight_match.h"
#include "run_options.h"
#include "train/plan/resume_check.h"
#include "train/plan/run_data.h"

namespace phalanx {
namespace {

void check_weights(const CheckedModel& model) {
  const HfCheckpoint checkpoint(model.folder);
  for (const MatchedTensor& tensor : match_weights(model.spec.weights, checkpoint).tensors) {
    const TensorInfo& info = *tensor.stored.info;
    PHALANX_CHECK(can_convert(info.dtype, Dtype::kF32), ConfigError, tensor.stored.file->path(), ": tensor ",
                  in_quotes(info.name), " is of type ", dtype_name(info.dtype),
                  "; weights are trained from F32, BF16 or F16: take the unquantised model");
  }
}

}  // namespace

CheckedModel check_inputs(const RunConfig& config) {
  require_field(config, "model");
  check_data_files(config.data);
  CheckedModel model;
  model.folder = find_model(config.model);
  model.spec = read_model_spec(model.folder);
  check_weights(model);
  if (needs_tokenizer(config.data)) {
    check_tokenizer(model.folder, model.spec.vocab_size);
  }
  PHALANX_CHECK(config.data.sequence_length <= model.spec.max_positions, ConfigError, model.folder,
                "/config.json: max_position_embeddings is ", model.spec.max_positions,
                ", less than data.sequence_length = ", config.data.sequence_length,
                "; write --sequence-length ", model.spec.max_positions, " or less");
  return model;
}

void check_run_data(const RunConfig& config, const ModelSpec& spec) {
  if (!config.data.train.empty()) {
    const auto training = open_training_data(config, spec.vocab_size);
    log_info("training data: ", describe(*training, config.data));
    if (const auto checkpoint = checkpoint_to_resume(config)) {
      begin_resume(*checkpoint, config, *training);
    }
  }
  if (const auto validation = open_validation_data(config, spec.vocab_size)) {
    log_info("validation data: ", describe(*validation, config.data));
  }
}

}  // namespace phalanx
