// Everything a training run needs to know, resolved: recipe file, then --set overrides, then flags, then
// defaults. Worker processes get the resolved JSON, never the YAML.
#pragma once
#include "core/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

struct DataConfig {
  std::vector<std::string> train;       // data files, or folders written by `phalanx prepare`
  std::vector<std::string> validation;  // the same; empty: validation_fraction of train, if that is > 0
  double validation_fraction = 0.0;
  std::string format = "auto";          // auto | messages | sharegpt | alpaca | question_answer
  std::string train_on = "assistant";   // assistant (every turn of it) | last (the last one) | all
  std::string chat_template;            // a Jinja file in place of the tokenizer's own template
  std::int64_t sequence_length = 1024;  // tokens of one packed row
  bool packing = true;                  // several documents a row, no attention across them
  std::string on_long = "drop";         // drop | truncate | error: a sample longer than sequence_length
};

struct OptimizerConfig {
  double learning_rate = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;              // not on norm weights and biases
  double clip_norm = 1.0;                 // of the global gradient; 0 turns clipping off
  std::string states = "fp32";            // fp32 | bf16 | 8bit: how the two moments are kept
  std::string update = "after_backward";  // after_backward | in_backward | in_backward_twice
};

struct ScheduleConfig {
  std::string kind = "cosine";  // cosine | linear | constant
  std::int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;  // of all steps; used when warmup_steps is 0
  double min_lr_ratio = 0.0;  // the rate at the end, as a share of learning_rate
};

struct TrainConfig {
  double epochs = 1.0;
  std::optional<std::int64_t> max_steps;  // wins over epochs
  std::int64_t micro_batch_size = 1;      // packed rows of one forward pass
  std::int64_t accumulation = 1;          // micro-batches of one optimizer step
  std::uint64_t seed = 0;
  std::string precision = "fp32";               // fp32 | bf16_master | bf16_stochastic
  std::string recompute = "none";               // none | selective | full: activations made again in backward
  std::string experts_implementation = "auto";  // auto | eager | batched_mm | grouped_mm | phalanx
  std::string device = "auto";                  // auto (a GPU if there is one) | cpu | cuda
  bool deterministic = false;  // the same bits in every run on a GPU too; the CPU is always so
  std::optional<double> router_aux_loss_coef;  // default: what config.json asks for
  std::optional<std::int64_t> threads;
};

struct DistributedConfig {
  std::int64_t ranks = 1;    // processes; each trains on its own rows
  std::int64_t ep_size = 1;  // neighbouring ranks over which the experts are spread; divides ranks
};

struct CheckpointConfig {
  std::int64_t every_steps = 0;  // 0: at the end and on a signal only
  std::int64_t keep_last = 2;
  std::string resume = "auto";  // auto | never | PATH of a checkpoint
};

struct RunConfig {
  std::string model;   // a model folder, or a hub id resolved to one before the engine starts
  std::string output;  // the run folder: checkpoints/, metrics.jsonl, config.json, model/ (the export)
  DataConfig data;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  DistributedConfig distributed;
  CheckpointConfig checkpoint;
  std::int64_t log_every = 1;
  std::int64_t eval_every = 0;  // 0: at the end only, when there is validation data
  bool export_model = true;     // write a Hugging Face folder at the end
};

// Checks fields and ranges. An unknown field is an error that names the nearest valid ones; `where` (a file name) begins each
// line of the message. Throws ConfigError that lists every problem. ConfigDraft does the same with a place for each value.
RunConfig run_config_from_json(const Json& json, const std::string& where);

// Every field, resolved, nested by section; fields without a value (train.max_steps) are null.
Json run_config_to_json(const RunConfig& config);

}  // namespace phalanx
