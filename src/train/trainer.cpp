#include "train/trainer.h"

#include "core/error.h"
#include "core/log.h"
#include "data/data_loader.h"
#include "models/causal_lm.h"
#include "ops/aten_compat.h"
#include "ops/grouped_linear.h"
#include "ops/operator.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/plan/memory_plan.h"
#include "train/plan/resume_check.h"
#include "train/plan/run_data.h"
#include "train/schedule.h"
#include "train/step_sums.h"
#include "train/stop_signal.h"
#include "train/training_checkpoint.h"
#include "train/training_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

namespace phalanx {
namespace {

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
  Impl(const RunConfig& run_config, const Mesh& mesh);

  RunEnd run();
  Evaluation evaluate();

  StepMetrics train_step(std::int64_t step);
  StepBatches next_batches();
  TrainingStep training_step() const { return {config, model, aux_loss_coef}; }
  void resume();
  void save(std::int64_t step);
  void report_evaluation(std::int64_t step);
  void report_samples();
  void report_memory();
  void append(const Json& line);  // to metrics.jsonl, on the first rank
  std::vector<std::int64_t> sum_over_ranks(std::vector<std::int64_t> values) const;
  FirstRows first_rows() const;
  CheckpointTensors whole_tensors() const;
  CheckpointTensors tensors() const { return {named_weights(model.parameters()), optimizer->state()}; }

  RunConfig config;
  Precision precision;
  CausalLM model;
  std::unique_ptr<DataLoader> train_data;       // absent for evaluation alone
  std::unique_ptr<DataLoader> validation_data;  // absent without validation data
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<MetricsFile> metrics_file;  // of the first rank
  std::string checkpoints;
  double aux_loss_coef = 0.0;
  std::int64_t total_steps = 0;
  std::int64_t done_steps = 0;
  std::int64_t tokens_seen = 0;
  double seconds = 0.0;
};

Trainer::Impl::Impl(const RunConfig& run_config, const Mesh& mesh)
    : config(run_config),
      precision(precision_from_name(config.train.precision)),
      // Master weights start from the checkpoint's values, not from their bf16 roundings.
      model(CausalLM::from_pretrained(
          config.model, precision == Precision::kBf16Master ? at::kFloat : weight_type(precision),
          mesh.world > 1 ? at::Device(at::kCPU) : choose_device(config.train.device), mesh)) {
  aten::make_products_reproducible();
  if (config.train.deterministic) {
    aten::make_deterministic();
  }
  if (config.train.threads.has_value()) {
    at::set_num_threads(static_cast<int>(*config.train.threads));
  }
  aux_loss_coef = config.train.router_aux_loss_coef.value_or(model.spec().router_aux_loss_coef);
  validation_data = open_validation_data(config, model.spec().vocab_size, mesh.rank, mesh.world);
  if (config.output.empty()) {
    return;
  }
  train_data = open_training_data(config, model.spec().vocab_size, mesh.rank, mesh.world);
  optimizer = std::make_unique<Optimizer>(model.parameters(), config.optimizer, precision, config.train.seed);
  log_experts(model, config.train.experts_implementation);
  const double batches = config.train.epochs * static_cast<double>(train_data->batches_per_epoch());
  total_steps = config.train.max_steps.value_or(std::max<std::int64_t>(
      1, static_cast<std::int64_t>(std::ceil(batches / static_cast<double>(config.train.accumulation)))));
  checkpoints = config.output + "/checkpoints";
  resume();
  if (mesh.is_first()) {
    metrics_file = std::make_unique<MetricsFile>(config.output + "/metrics.jsonl", done_steps);
  }
}

void Trainer::Impl::append(const Json& line) {
  if (metrics_file != nullptr) {
    metrics_file->append(line);
  }
}

// What ranks must agree on, because all of them act on it: the sums over ranks.
std::vector<std::int64_t> Trainer::Impl::sum_over_ranks(std::vector<std::int64_t> values) const {
  if (model.mesh().world > 1) {
    const at::Tensor sums =
        at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(model.parameters().device());
    all_reduce_(model.mesh().all, {sums});
    const at::Tensor host = sums.cpu();
    std::copy_n(host.const_data_ptr<std::int64_t>(), values.size(), values.begin());
  }
  return values;
}

FirstRows Trainer::Impl::first_rows() const {
  FirstRows result;
  for (const Parameter& parameter : model.parameters().list()) {
    if (parameter.total_rows > 0) {
      result.emplace(parameter.name, parameter.first_row);
    }
  }
  return result;
}

// Weights and states on the host, with all experts on the first rank. Collective.
CheckpointTensors Trainer::Impl::whole_tensors() const {
  std::unordered_map<std::string, std::int64_t> totals;
  for (const Parameter& parameter : model.parameters().list()) {
    totals.emplace(parameter.name, parameter.total_rows);
  }
  CheckpointTensors whole = on_host(tensors());
  for (auto& [name, tensor] : whole.model) {
    tensor = gather_experts(model.mesh(), tensor, totals.at(name));
  }
  for (auto& [name, tensor] : whole.optimizer) {  // KIND.NAME
    tensor = gather_experts(model.mesh(), tensor, totals.at(name.substr(name.find('.') + 1)));
  }
  return whole;
}

void Trainer::Impl::resume() {
  const std::optional<std::string> checkpoint = checkpoint_to_resume(config);
  if (!checkpoint.has_value()) {
    return;
  }
  const Json progress = begin_resume(*checkpoint, config, *train_data);
  try {
    const CheckpointTensors current = tensors(), host = on_host(current);
    load_checkpoint_tensors(*checkpoint, host, first_rows());
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
  const CheckpointTensors whole = whole_tensors();
  if (!model.mesh().is_first()) {
    return;
  }
  Json progress = Json::object();
  progress.set("step", step);
  progress.set("tokens", tokens_seen);
  progress.set("seconds", seconds);
  progress.set("data", train_data->state());
  progress.set("model", model.source());
  progress.set("model_fingerprint", model_fingerprint(model.source()));
  progress.set("config", run_config_to_json(config));
  const std::string folder = save_training_checkpoint(checkpoints, step, progress, whole);
  prune_checkpoints(checkpoints, config.checkpoint.keep_last);
  log_info("saved ", folder);
}

StepBatches Trainer::Impl::next_batches() {
  StepBatches step;
  for (std::int64_t i = 0; i < config.train.accumulation; ++i) {
    step.batches.push_back(train_data->next());
    step.supervised_tokens += step.batches.back().supervised_tokens;
    step.tokens += static_cast<std::int64_t>(step.batches.back().tokens.size());
  }
  const std::vector<std::int64_t> sums = sum_over_ranks({step.supervised_tokens, step.tokens});
  step.supervised_tokens = sums[0];
  step.tokens = sums[1];
  return step;
}

StepMetrics Trainer::Impl::train_step(std::int64_t number) {
  const auto start = std::chrono::steady_clock::now();
  const StepBatches step = next_batches();
  const double learning_rate =
      learning_rate_at(config.schedule, config.optimizer.learning_rate, number, total_steps);
  const StepOutcome outcome = training_step().run(number, step, learning_rate, *optimizer);
  if (step.supervised_tokens == 0) {
    log_warning("step ", number, " has no supervised token, the weights stay as they are");
  }
  const auto [loss, aux_loss, correct] = outcome.sums.values();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  tokens_seen += step.tokens;
  seconds += elapsed;
  StepMetrics metrics;
  metrics.step = number;
  metrics.total_steps = total_steps;
  metrics.epoch = train_data->epoch();
  metrics.loss = loss / step.divisor();
  metrics.accuracy = correct / step.divisor();
  metrics.aux_loss = aux_loss;
  metrics.grad_norm = outcome.grad_norm;
  metrics.learning_rate = learning_rate;
  metrics.tokens = tokens_seen;
  metrics.supervised_tokens = step.supervised_tokens;
  metrics.tokens_per_second = static_cast<double>(step.tokens) / elapsed;
  metrics.seconds = seconds;
  metrics.seconds_left = seconds / static_cast<double>(number) * static_cast<double>(total_steps - number);
  outcome.load.report(metrics);
  return metrics;
}

Trainer::Evaluation Trainer::Impl::evaluate() {
  PHALANX_CHECK(validation_data != nullptr, ConfigError,
                "there is no validation data; name files with data.validation");
  const at::NoGradGuard no_grad;
  Evaluation result;
  StepSums sums(model.parameters().device());
  for (std::int64_t i = 0; i < validation_data->batches_per_epoch(); ++i) {
    const Batch batch = validation_data->next();
    sums.add(training_step().loss(batch, 0.0, 1.0), 0.0);
    result.supervised_tokens += batch.supervised_tokens;
  }
  sums.sum_over(model.mesh().all);
  result.supervised_tokens = sum_over_ranks({result.supervised_tokens})[0];
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
  append(line);
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
  append(line);
}

// Of a GPU, at the end of a run.
void Trainer::Impl::report_memory() {
  const at::Device device = model.parameters().device();
  if (device.is_cpu()) {
    return;
  }
  const MemoryPeak peak = gpu_memory_peak(device);
  Json line = Json::object();
  line.set("step", done_steps);
  line.set("gpu_allocated_bytes", peak.allocated);
  line.set("gpu_reserved_bytes", peak.reserved);
  append(line);
  log_info("GPU memory: at most ", bytes_text(static_cast<std::uint64_t>(peak.allocated)), " allocated, ",
           bytes_text(static_cast<std::uint64_t>(peak.reserved)), " reserved");
}

RunEnd Trainer::Impl::run() {
  StopSignal signals;
  const auto due = [](std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; };
  std::int64_t saved_step = done_steps;
  for (std::int64_t step = done_steps + 1; step <= total_steps; ++step) {
    const StepMetrics metrics = train_step(step);
    done_steps = step;
    append(to_json(metrics));
    if (step == 1) {
      report_samples();
    }
    if (due(step, config.log_every) || step == total_steps) {
      log_info(progress_line(metrics));
    }
    if (validation_data != nullptr && (due(step, config.eval_every) || step == total_steps)) {
      report_evaluation(step);
    }
    const std::vector<std::int64_t> asked =
        sum_over_ranks({signals.stop_requested() != 0 ? 1 : 0, signals.take_save_request() ? 1 : 0});
    const bool stop = asked[0] > 0;
    if (due(step, config.checkpoint.every_steps) || step == total_steps || stop || asked[1] > 0) {
      save(step);
      saved_step = step;
    }
    if (stop || step == total_steps) {
      report_memory();
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

Trainer::Trainer(const RunConfig& config, const Mesh& mesh) : impl_(std::make_unique<Impl>(config, mesh)) {}
Trainer::~Trainer() = default;
RunEnd Trainer::run() { return impl_->run(); }
Trainer::Evaluation Trainer::evaluate() { return impl_->evaluate(); }

}  // namespace phalanx
