#include "train/schedule.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace phalanx {

std::int64_t warmup_length(const ScheduleConfig& schedule, std::int64_t total_steps) {
  if (schedule.warmup_steps > 0) {
    return schedule.warmup_steps;
  }
  return static_cast<std::int64_t>(std::ceil(schedule.warmup_ratio * static_cast<double>(total_steps)));
}

double learning_rate_at(const ScheduleConfig& schedule, double peak, std::int64_t step,
                        std::int64_t total_steps) {
  const std::int64_t warmup = warmup_length(schedule, total_steps);
  if (step <= warmup) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup);
  }
  if (schedule.kind == "constant") {
    return peak;
  }
  const double remaining = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - 1 - warmup) / remaining);
  const double floor = schedule.min_lr_ratio;
  double shape = 0.0;
  if (schedule.kind == "cosine") {
    shape = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  } else if (schedule.kind == "linear") {
    shape = 1.0 - progress;
  } else {
    fail<ConfigError>("schedule.kind is \"", schedule.kind, "\"; it must be cosine, linear or constant");
  }
  return peak * (floor + (1.0 - floor) * shape);
}

}  // namespace phalanx
