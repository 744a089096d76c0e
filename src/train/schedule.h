// The learning rate of each step.
#pragma once
#include "config/run_config.h"

#include <cstdint>

namespace phalanx {

// Steps of warm-up in a run of `total_steps`: `warmup_steps`, or `warmup_ratio` of the run rounded up.
std::int64_t warmup_length(const ScheduleConfig& schedule, std::int64_t total_steps);

// Of optimizer step `step`, counted from 1. Rises linearly to `peak` at the last step of warm-up, then falls from `peak`
// towards min_lr_ratio * peak (cosine, linear) or stays (constant).
double learning_rate_at(const ScheduleConfig& schedule, double peak, std::int64_t step,
                        std::int64_t total_steps);

}  // namespace phalanx
