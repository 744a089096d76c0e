// What a run reports while it goes: a line for a person, and metrics.jsonl for plots and scripts.
#pragma once
#include "core/json.h"

#include <cstdint>
#include <string>

namespace phalanx {

struct StepMetrics {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  double epoch = 0.0;
  double loss = 0.0;       // mean over the supervised tokens of the step
  double accuracy = 0.0;   // share of supervised tokens predicted right
  double aux_loss = 0.0;   // 0 when it is not computed
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  double tokens_per_second = 0.0;      // of this step, all tokens
  std::int64_t tokens = 0;             // seen since the start of the run
  std::int64_t supervised_tokens = 0;  // of this step
  double seconds = 0.0;                // training time since the start of the run
  double seconds_left = 0.0;
  double expert_load = 0.0;  // tokens of the busiest expert over the mean, worst layer; 0 without experts
  std::int64_t dead_experts = 0;  // experts without a token in this step, all layers
};

Json to_json(const StepMetrics& metrics);
std::string progress_line(const StepMetrics& metrics);
std::string duration_text(double seconds);  // "1:02:03", "4:05"

// Appends lines of JSON to metrics.jsonl. Opening it clears away a line cut off by a crash, and the lines of steps after
// `last_step`, which a resumed run takes anew.
class MetricsFile {
 public:
  MetricsFile(std::string path, std::int64_t last_step);
  void append(const Json& line);  // throws IoError

 private:
  std::string path_;
};

}  // namespace phalanx
