#include "config/field.h"

#include <algorithm>
#include <map>

namespace phalanx {
namespace {

template <auto... Path>
FieldPointer at(RunConfig& config) {
  return &(config.*....*Path);
}

using C = RunConfig;
using Data = DataConfig;
using Optimizer = OptimizerConfig;
using Schedule = ScheduleConfig;
using Train = TrainConfig;
using Distributed = DistributedConfig;
using Checkpoint = CheckpointConfig;

constexpr OnResume kFixed = OnResume::kMustAgree;
constexpr OnResume kFree = OnResume::kMayDiffer;

const FieldRule kAny;
FieldRule within(double min, double max) { return {min, max, false, false, {}}; }
FieldRule above(double min, double max) { return {min, max, true, false, {}}; }
FieldRule below(double min, double max) { return {min, max, false, true, {}}; }
FieldRule one_of(std::vector<std::string> choices) {
  FieldRule rule;
  rule.choices = std::move(choices);
  return rule;
}
constexpr double kMaxCount = 1e12;  // of steps: far beyond any run, and far below what overflows

}  // namespace

const std::vector<Field>& run_config_fields() {
  static const std::vector<Field> fields = {
      {"model", at<&C::model>, kAny, "--model", kFixed,
       "model folder, or a hub id such as Qwen/Qwen3-30B-A3B"},
      {"output", at<&C::output>, kAny, "--output", kFree,
       "run folder: config.json, metrics.jsonl, checkpoints/, model/"},

      {"data.train", at<&C::data, &Data::train>, kAny, "--data", kFixed,
       "data files (JSON, JSONL), or folders written by `phalanx prepare`"},
      {"data.validation", at<&C::data, &Data::validation>, kAny, "--validation", kFixed,
       "the same, to measure the loss on"},
      {"data.validation_fraction", at<&C::data, &Data::validation_fraction>, below(0, 1),
       "--validation-fraction", kFixed, "share of data.train held out for validation"},
      {"data.format", at<&C::data, &Data::format>,
       one_of({"auto", "messages", "sharegpt", "alpaca", "question_answer"}), "--format", kFixed,
       "how the data files are laid out; auto: seen from the keys"},
      {"data.train_on", at<&C::data, &Data::train_on>, one_of({"assistant", "last", "all"}), "--train-on",
       kFixed, "which tokens are targets of the loss"},
      {"data.chat_template", at<&C::data, &Data::chat_template>, kAny, "--chat-template", kFixed,
       "Jinja file in place of the tokenizer's own chat template; the trained model gets it too"},
      {"data.sequence_length", at<&C::data, &Data::sequence_length>, within(2, 1 << 24), "--sequence-length",
       kFixed, "tokens of one packed row"},
      {"data.packing", at<&C::data, &Data::packing>, kAny, "", kFixed,
       "several samples a row, no attention across them"},
      {"data.on_long", at<&C::data, &Data::on_long>, one_of({"drop", "truncate", "error"}), "--on-long",
       kFixed, "what to do with a sample longer than sequence_length"},

      {"optimizer.learning_rate", at<&C::optimizer, &Optimizer::learning_rate>, above(0, 1),
       "--learning-rate", kFree, "peak learning rate of AdamW"},
      {"optimizer.beta1", at<&C::optimizer, &Optimizer::beta1>, below(0, 1), "", kFixed,
       "decay of the first moment"},
      {"optimizer.beta2", at<&C::optimizer, &Optimizer::beta2>, below(0, 1), "", kFixed,
       "decay of the second moment"},
      {"optimizer.eps", at<&C::optimizer, &Optimizer::eps>, above(0, 1), "", kFixed,
       "added to the root of the second moment"},
      {"optimizer.weight_decay", at<&C::optimizer, &Optimizer::weight_decay>, within(0, 1), "--weight-decay",
       kFree, "decoupled; not on norm weights and biases"},
      {"optimizer.clip_norm", at<&C::optimizer, &Optimizer::clip_norm>, within(0, 1e6), "--clip-norm", kFree,
       "largest norm of the global gradient; 0: no clipping"},
      {"optimizer.states", at<&C::optimizer, &Optimizer::states>, one_of({"fp32", "bf16", "8bit"}),
       "--optimizer-states", kFixed,
       "how AdamW keeps its two moments: 8, 4 or 2.02 bytes a parameter together"},
      {"optimizer.update", at<&C::optimizer, &Optimizer::update>,
       one_of({"after_backward", "in_backward", "in_backward_twice"}), "", kFree,
       "in_backward: each layer is updated and its gradient dropped as backward reaches it, without "
       "clipping; "
       "in_backward_twice: the same after a first backward pass for the norm"},

      {"schedule.kind", at<&C::schedule, &Schedule::kind>, one_of({"cosine", "linear", "constant"}),
       "--schedule", kFree, "course of the learning rate after the warm-up"},
      {"schedule.warmup_steps", at<&C::schedule, &Schedule::warmup_steps>, within(0, kMaxCount),
       "--warmup-steps", kFree, "steps over which the rate rises from 0"},
      {"schedule.warmup_ratio", at<&C::schedule, &Schedule::warmup_ratio>, below(0, 1), "--warmup-ratio",
       kFree, "the same as a share of all steps"},
      {"schedule.min_lr_ratio", at<&C::schedule, &Schedule::min_lr_ratio>, within(0, 1), "", kFree,
       "the rate at the end, as a share of the peak"},

      {"train.epochs", at<&C::train, &Train::epochs>, above(0, 1e6), "--epochs", kFree,
       "passes over the data"},
      {"train.max_steps", at<&C::train, &Train::max_steps>, within(1, kMaxCount), "--max-steps", kFree,
       "optimizer steps; wins over epochs"},
      {"train.micro_batch_size", at<&C::train, &Train::micro_batch_size>, within(1, 65536),
       "--micro-batch-size", kFixed, "packed rows of one forward pass"},
      {"train.accumulation", at<&C::train, &Train::accumulation>, within(1, 65536), "--accumulation", kFree,
       "micro-batches of one optimizer step"},
      {"train.seed", at<&C::train, &Train::seed>, within(0, 9.2e18), "--seed", kFixed,
       "of the data order and of stochastic rounding"},
      {"train.precision", at<&C::train, &Train::precision>,
       one_of({"fp32", "bf16_master", "bf16_stochastic"}), "--precision", kFixed,
       "weights: fp32; bf16 with fp32 master weights; bf16 with stochastic rounding"},
      {"train.recompute", at<&C::train, &Train::recompute>, one_of({"none", "selective", "full"}),
       "--recompute", kFree,
       "activations that backward computes again instead of keeping them: none; all but attention and "
       "routing; "
       "all but routing"},
      {"train.experts_implementation", at<&C::train, &Train::experts_implementation>,
       one_of({"auto", "eager", "batched_mm", "grouped_mm", "phalanx"}), "", kFixed,
       "how the experts are computed; the same result each way"},
      {"train.device", at<&C::train, &Train::device>, one_of({"auto", "cpu", "cuda"}), "--device", kFree,
       "where to compute; auto: a GPU if there is one that the engine is built for"},
      {"train.deterministic", at<&C::train, &Train::deterministic>, kAny, "", kFixed,
       "the same bits in every run on a GPU too, at the price of a slower attention; the CPU is always so"},
      {"train.router_aux_loss_coef", at<&C::train, &Train::router_aux_loss_coef>, within(0, 100), "", kFixed,
       "weight of the load-balancing loss; default: what the model's config.json asks for"},
      {"train.threads", at<&C::train, &Train::threads>, within(1, 4096), "--threads", kFree,
       "CPU threads; default: all cores"},

      {"distributed.ranks", at<&C::distributed, &Distributed::ranks>, within(1, 4096), "--ranks", kFree,
       "processes that train together, each on its own rows; started by the command, or by torchrun"},
      {"distributed.ep_size", at<&C::distributed, &Distributed::ep_size>, within(1, 4096), "--ep-size", kFree,
       "neighbouring ranks over which the experts are spread; it divides the number of ranks"},

      {"checkpoint.every_steps", at<&C::checkpoint, &Checkpoint::every_steps>, within(0, kMaxCount),
       "--save-every", kFree, "steps between checkpoints; 0: at the end and on a signal only"},
      {"checkpoint.keep_last", at<&C::checkpoint, &Checkpoint::keep_last>, within(1, 1e6), "", kFree,
       "checkpoints kept"},
      {"checkpoint.resume", at<&C::checkpoint, &Checkpoint::resume>, kAny, "--resume", kFree,
       "auto (go on if OUTPUT holds a checkpoint), never, or the path of a checkpoint"},

      {"log_every", at<&C::log_every>, within(1, kMaxCount), "--log-every", kFree,
       "steps between progress lines"},
      {"eval_every", at<&C::eval_every>, within(0, kMaxCount), "--eval-every", kFree,
       "steps between validations; 0: at the end only"},
      {"export_model", at<&C::export_model>, kAny, "", kFree,
       "write a Hugging Face folder to OUTPUT/model at the end"},
  };
  return fields;
}

const Field* find_field(std::string_view name) {
  const auto& fields = run_config_fields();
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const Field& field : run_config_fields()) {
    names.push_back(field.name);
  }
  return names;
}

std::string field_known_elsewhere_as(std::string_view name) {
  static const std::map<std::string, std::string, std::less<>> names = {
      {"base_model", "model"},
      {"bf16", "train.precision"},
      {"cutoff_len", "data.sequence_length"},
      {"dataset", "data.train"},
      {"datasets", "data.train"},
      {"eval_steps", "eval_every"},
      {"gradient_accumulation_steps", "train.accumulation"},
      {"logging_steps", "log_every"},
      {"lr", "optimizer.learning_rate"},
      {"lr_scheduler", "schedule.kind"},
      {"lr_scheduler_type", "schedule.kind"},
      {"max_grad_norm", "optimizer.clip_norm"},
      {"max_length", "data.sequence_length"},
      {"max_seq_length", "data.sequence_length"},
      {"model_name_or_path", "model"},
      {"num_epochs", "train.epochs"},
      {"num_train_epochs", "train.epochs"},
      {"output_dir", "output"},
      {"per_device_train_batch_size", "train.micro_batch_size"},
      {"resume_from_checkpoint", "checkpoint.resume"},
      {"sample_packing", "data.packing"},
      {"gradient_checkpointing", "train.recompute"},
      {"save_steps", "checkpoint.every_steps"},
      {"save_total_limit", "checkpoint.keep_last"},
      {"sequence_len", "data.sequence_length"},
      {"val_set_size", "data.validation_fraction"},
      {"val_size", "data.validation_fraction"},
  };
  const auto found = names.find(name.substr(name.rfind('.') + 1));
  return found == names.end() ? "" : found->second;
}

}  // namespace phalanx
