#include "train/schedule.h"

#include "core/error.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

ScheduleConfig schedule(const std::string& kind, std::int64_t warmup, double min_ratio) {
  ScheduleConfig config;
  config.kind = kind;
  config.warmup_steps = warmup;
  config.min_lr_ratio = min_ratio;
  return config;
}

TEST(Schedule, WarmsUpThenFalls) {
  const auto cosine = schedule("cosine", 4, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(cosine, 2.0, 1, 24), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(cosine, 2.0, 4, 24), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(cosine, 2.0, 5, 24), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(cosine, 2.0, 15, 24), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_GT(learning_rate_at(cosine, 2.0, 24, 24), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule("linear", 0, 0.0), 1.0, 6, 10), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule("constant", 0, 0.0), 1.0, 10, 10), 1.0);
}

TEST(Schedule, WarmupAsAShareOfTheRun) {
  ScheduleConfig config = schedule("constant", 0, 0.0);
  config.warmup_ratio = 0.05;
  EXPECT_EQ(warmup_length(config, 30), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 1.0, 1, 30), 0.5);
}

TEST(Schedule, UnknownKindIsRefused) {
  EXPECT_THROW(learning_rate_at(schedule("cosin", 0, 0.0), 1.0, 1, 10), ConfigError);
}

}  // namespace
}  // namespace phalanx
