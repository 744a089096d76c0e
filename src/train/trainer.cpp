#include "train/trainer.h"

#include "core/error.h"
#include "core/log.h"
#include "data/data_loader.h"
#include "models/causal_lm.h"
#include "ops/adamw.h"
#include "ops/aten_compat.h"
#include "ops/grouped_linear.h"
#include "ops/operator.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/plan/resume_check.h"
#include "train/plan/run_data.h"
#include "train/schedule.h"
#include "train/step_sums.h"
#include "train/stop_signal.h"
#include "train/training_checkpoint.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

namespace phalanx {
namespace {

// A batch as tensors: tokens and labels on the CPU, where looking at them waits for nothing, the layout where the model is.
struct BatchTensors {
  BatchTensors(const Batch& batch, at::Device device)
      : tokens(copy(batch.tokens)),
        labels(copy(batch.labels)),
        layout(layout_from_lengths(batch.lengths, device)) {}
  static at::Tensor copy(const std::vector<std::int64_t>& values) {
    auto* data = const_cast<std::int64_t*>(values.data());
    return at::from_blob(data, {static_cast<std::int64_t>(values.size())},
                         at::TensorOptions().dtype(at::kLong))
        .clone();
  }
  at::Tensor tokens, labels;  // [T] int64
  SequenceLayout layout;
};

// Which implementation runs the experts, and why; one that cannot be had stops the run here.
void log_experts(const CausalLM& model, const std::string& wanted) {
  for (const Parameter& parameter : model.parameters().list()) {
    if (parameter.name.ends_with("experts.gate_up_proj")) {
      const ExpertsChoice choice = choose_experts_implementation(experts_implementation_from_name(wanted),
                                                                 experts_situation(parameter.tensor));
      log_info("experts: ", experts_implementation_name(choice.implementation), " (", choice.reason, ")");
      return;
    }
  }
}

at::Device choose_device(const std::string& name) {
  PHALANX_CHECK(name != "cuda" || can_use_gpu(), ConfigError,
                "train.device is cuda, but there is no GPU, or this engine is built without kernels for one; "
                "use auto or cpu");
  return name == "cpu" || !can_use_gpu() ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

}  // namespace

struct Trainer::Impl {
  explicit Impl(const RunConfig& run_config);

  RunEnd run();
  Evaluation evaluate();

  StepMetrics train_step(std::int64_t step);
  LossOutput loss_of(const Batch& batch, double aux_share, double divisor) const;
  void check_finite(double loss, double norm, const Tensors& gradients, std::int64_t step) const;
  void resume();
  void save(std::int64_t step);
  void report_evaluation(std::int64_t step);
  void report_samples();
  CheckpointTensors tensors() const { return {named_weights(model.parameters()), optimizer->state()}; }

  RunConfig config;
  Precision precision;
  CausalLM model;
  std::unique_ptr<DataLoader> train_data;       // absent for evaluation alone
  std::unique_ptr<DataLoader> validation_data;  // absent without validation data
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<MetricsFile> metrics_file;
  std::string checkpoints;
  double aux_loss_coef = 0.0;
  std::int64_t total_steps = 0;
  std::int64_t done_steps = 0;
  std::int64_t tokens_seen = 0;
  double seconds = 0.0;
};

Trainer::Impl::Impl(const RunConfig& run_config)
    : config(run_config),
      precision(precision_from_name(config.train.precision)),
      // Master weights start from the checkpoint's values, not from their bf16 roundings.
      model(CausalLM::from_pretrained(
          config.model, precision == Precision::kBf16Master ? at::kFloat : weight_type(precision),
          choose_device(config.train.device))) {
  aten::make_products_reproducible();
  if (config.train.deterministic) {
    aten::make_deterministic();
  }
  if (config.train.threads.has_value()) {
    at::set_num_threads(static_cast<int>(*config.train.threads));
  }
  aux_loss_coef = config.train.router_aux_loss_coef.value_or(model.spec().router_aux_loss_coef);
  validation_data = open_validation_data(config, model.spec().vocab_size);
  if (config.output.empty()) {
    return;
  }
  train_data = open_training_data(config, model.spec().vocab_size);
  optimizer = std::make_unique<Optimizer>(model.parameters(), config.optimizer, precision, config.train.seed);
  log_experts(model, config.train.experts_implementation);
  const double batches = config.train.epochs * static_cast<double>(train_data->batches_per_epoch());
  total_steps = config.train.max_steps.value_or(std::max<std::int64_t>(
      1, static_cast<std::int64_t>(std::ceil(batches / static_cast<double>(config.train.accumulation)))));
  checkpoints = config.output + "/checkpoints";
  resume();
  metrics_file = std::make_unique<MetricsFile>(config.output + "/metrics.jsonl", done_steps);
}

void Trainer::Impl::resume() {
  const std::optional<std::string> checkpoint = checkpoint_to_resume(config);
  if (!checkpoint.has_value()) {
    return;
  }
  const Json progress = begin_resume(*checkpoint, config, *train_data);
  try {
    const CheckpointTensors current = tensors(), host = on_host(current);
    load_checkpoint_tensors(*checkpoint, host);
    copy_tensors(host, current);
  } catch (const IoError& error) {
    fail<ConfigError>(error.what(), advice_if_damaged(*checkpoint));
  }
  done_steps = progress.at("step").as_integer();
  tokens_seen = progress.at("tokens").as_integer();
  seconds = progress.at("seconds").as_number();
  log_info("resumed from ", *checkpoint, " at step ", done_steps, " of ", total_steps);
}

void Trainer::Impl::save(std::int64_t step) {
  Json progress = Json::object();
  progress.set("step", step);
  progress.set("tokens", tokens_seen);
  progress.set("seconds", seconds);
  progress.set("data", train_data->state());
  progress.set("model", model.source());
  progress.set("model_fingerprint", model_fingerprint(model.source()));
  progress.set("config", run_config_to_json(config));
  const std::string folder = save_training_checkpoint(checkpoints, step, progress, on_host(tensors()));
  prune_checkpoints(checkpoints, config.checkpoint.keep_last);
  log_info("saved ", folder);
}

LossOutput Trainer::Impl::loss_of(const Batch& batch, double aux_share, double divisor) const {
  const BatchTensors tensors(batch, model.parameters().device());
  LossOptions options;
  options.decoder.experts = experts_implementation_from_name(config.train.experts_implementation);
  options.aux_loss_coef = aux_loss_coef;
  options.aux_loss_share = aux_share;
  options.loss_divisor = divisor;
  return decoder_loss(model.spec(), model.parameters(), tensors.tokens, tensors.labels, tensors.layout,
                      options);
}

StepMetrics Trainer::Impl::train_step(std::int64_t step) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Batch> batches;
  StepMetrics metrics;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < config.train.accumulation; ++i) {
    batches.push_back(train_data->next());
    metrics.supervised_tokens += batches.back().supervised_tokens;
    tokens += static_cast<std::int64_t>(batches.back().tokens.size());
  }
  const double divisor = static_cast<double>(std::max<std::int64_t>(1, metrics.supervised_tokens));
  GradientAccumulator accumulator(model.parameters(), config.train.accumulation);
  ExpertLoad load;
  StepSums sums(model.parameters().device());
  for (const Batch& batch : batches) {
    const double share = static_cast<double>(batch.tokens.size()) / static_cast<double>(tokens);
    LossOutput output = loss_of(batch, share, divisor);
    output.objective.backward();
    accumulator.add();
    load.add(output.expert_counts);
    sums.add(output, share);
  }
  const Tensors gradients = accumulator.gradients();
  metrics.grad_norm = global_norm(gradients).item<double>();
  const auto [loss, aux_loss, correct] = sums.values();
  metrics.loss = loss / divisor;
  metrics.aux_loss = aux_loss;
  check_finite(metrics.loss, metrics.grad_norm, gradients, step);
  const double clip = config.optimizer.clip_norm;
  const double scale = clip > 0.0 ? std::min(1.0, clip / (metrics.grad_norm + 1e-6)) : 1.0;
  metrics.learning_rate =
      learning_rate_at(config.schedule, config.optimizer.learning_rate, step, total_steps);
  if (metrics.supervised_tokens > 0) {
    optimizer->step(gradients, metrics.learning_rate, scale, step);
  } else {
    log_warning("step ", step, " has no supervised token, the weights stay as they are");
  }
  accumulator.clear();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  tokens_seen += tokens;
  seconds += elapsed;
  metrics.step = step;
  metrics.total_steps = total_steps;
  metrics.epoch = train_data->epoch();
  metrics.accuracy = correct / divisor;
  metrics.tokens = tokens_seen;
  metrics.tokens_per_second = static_cast<double>(tokens) / elapsed;
  metrics.seconds = seconds;
  metrics.seconds_left = seconds / static_cast<double>(step) * static_cast<double>(total_steps - step);
  load.report(metrics);
  return metrics;
}

void Trainer::Impl::check_finite(double loss, double norm, const Tensors& gradients,
                                 std::int64_t step) const {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    return;
  }
  std::string culprit;
  for (std::size_t i = 0; i < gradients.size() && culprit.empty(); ++i) {
    if (!gradients[i].isfinite().all().item<bool>()) {
      culprit = "; the first gradient that is not finite is that of " + model.parameters().list()[i].name;
    }
  }
  fail("step ", step, ": loss ", loss, ", gradient norm ", norm, culprit,
       "; the weights have not been touched. Lower optimizer.learning_rate or optimizer.clip_norm, or look "
       "at the data of this "
       "step, and resume from the last checkpoint");
}

Trainer::Evaluation Trainer::Impl::evaluate() {
  PHALANX_CHECK(validation_data != nullptr, ConfigError,
                "there is no validation data; name files with data.validation");
  const at::NoGradGuard no_grad;
  Evaluation result;
  StepSums sums(model.parameters().device());
  for (std::int64_t i = 0; i < validation_data->batches_per_epoch(); ++i) {
    const Batch batch = validation_data->next();
    sums.add(loss_of(batch, 0.0, 1.0), 0.0);
    result.supervised_tokens += batch.supervised_tokens;
  }
  const double count = static_cast<double>(std::max<std::int64_t>(1, result.supervised_tokens));
  result.loss = sums.values().loss / count;
  result.accuracy = sums.values().correct / count;
  result.samples = validation_data->num_samples();
  result.dropped_samples = validation_data->num_dropped();
  return result;
}

void Trainer::Impl::report_evaluation(std::int64_t step) {
  const Evaluation result = evaluate();
  Json line = Json::object();
  line.set("step", step);
  line.set("validation_loss", result.loss);
  line.set("validation_accuracy", result.accuracy);
  metrics_file->append(line);
  log_info("step ", step, "/", total_steps, "  validation loss ", result.loss, "  accuracy ",
           result.accuracy);
}

// Of the training data, once a run.
void Trainer::Impl::report_samples() {
  Json line = Json::object();
  line.set("step", done_steps);
  line.set("samples", train_data->num_samples());
  line.set("dropped_samples", train_data->num_dropped());
  line.set("truncated_samples", train_data->num_truncated());
  line.set("longest_sample", train_data->longest_sample());
  metrics_file->append(line);
}

RunEnd Trainer::Impl::run() {
  StopSignal signals;
  const auto due = [](std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; };
  std::int64_t saved_step = done_steps;
  for (std::int64_t step = done_steps + 1; step <= total_steps; ++step) {
    const StepMetrics metrics = train_step(step);
    done_steps = step;
    metrics_file->append(to_json(metrics));
    if (step == 1) {
      report_samples();
    }
    if (due(step, config.log_every) || step == total_steps) {
      log_info(progress_line(metrics));
    }
    if (validation_data != nullptr && (due(step, config.eval_every) || step == total_steps)) {
      report_evaluation(step);
    }
    const bool stop = signals.stop_requested() != 0;
    if (due(step, config.checkpoint.every_steps) || step == total_steps || stop ||
        signals.take_save_request()) {
      save(step);
      saved_step = step;
    }
    if (stop && step < total_steps) {
      log_info("stopped by a signal after step ", saved_step, "; the same command goes on from there");
      return RunEnd::kInterrupted;
    }
  }
  if (config.export_model) {
    const std::string folder = config.output + "/model";
    SaveOptions options;
    options.replace = true;  // an export of this very run
    options.chat_template = config.data.chat_template;
    model.save_pretrained(folder, options);
    log_info("wrote ", folder, ", a Hugging Face model folder");
  }
  return RunEnd::kFinished;
}

Trainer::Trainer(const RunConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Trainer::~Trainer() = default;
RunEnd Trainer::run() { return impl_->run(); }
Trainer::Evaluation Trainer::evaluate() { return impl_->evaluate(); }

}  // namespace phalanx
