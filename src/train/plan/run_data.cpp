#include "train/plan/run_data.h"

#include "core/error.h"

#include <cmath>

namespace phalanx {
namespace {

// Without validation files a share of the training samples is held out.
bool holds_out(const RunConfig& config) {
  return config.data.validation.empty() && config.data.validation_fraction > 0.0;
}

LoaderOptions loader_options(const RunConfig& config, bool for_training, int rank, int world) {
  LoaderOptions options;
  options.sequence_length = config.data.sequence_length;
  options.packing = config.data.packing;
  options.on_long = config.data.on_long;
  options.rows = config.train.micro_batch_size;
  options.seed = config.train.seed;
  options.shuffle = for_training;
  options.rank = rank;
  options.world = world;
  options.validation_fraction = holds_out(config) ? config.data.validation_fraction : 0.0;
  options.validation_part = holds_out(config) && !for_training;
  return options;
}

}  // namespace

std::unique_ptr<DataLoader> open_training_data(const RunConfig& config, std::int64_t vocab_size, int rank,
                                               int world) {
  return std::make_unique<DataLoader>(config.data.train,
                                      loader_options(config, /*for_training=*/true, rank, world), vocab_size);
}

std::unique_ptr<DataLoader> open_validation_data(const RunConfig& config, std::int64_t vocab_size, int rank,
                                                 int world) {
  if (!holds_out(config) && config.data.validation.empty()) {
    return nullptr;
  }
  return std::make_unique<DataLoader>(holds_out(config) ? config.data.train : config.data.validation,
                                      loader_options(config, /*for_training=*/false, rank, world),
                                      vocab_size);
}

std::string describe(const DataLoader& data, const DataConfig& config) {
  const std::int64_t all = data.num_samples() + data.num_dropped();
  std::string text =
      concat(data.num_samples(), " samples, ", data.tokens_per_epoch(), " tokens (",
             data.supervised_tokens_per_epoch(), " supervised) in ", data.num_rows(), " rows of ",
             config.sequence_length, ", ", std::lround(100 * data.fill_rate()), "% filled");
  if (data.num_dropped() > 0) {
    text += concat("; dropped ", data.num_dropped(), " of ", all, " samples longer than ",
                   config.sequence_length, " tokens");
  }
  if (data.num_truncated() > 0) {
    text += concat("; cut ", data.num_truncated(), " of ", all, " samples to ", config.sequence_length,
                   " tokens");
  }
  if (data.num_dropped() + data.num_truncated() > 0) {
    text += concat("; --sequence-length ", data.longest_sample(), " keeps all");
  }
  return text;
}

}  // namespace phalanx
