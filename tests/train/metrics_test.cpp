#include "train/metrics.h"

#include "core/file.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace phalanx {
namespace {

TEST(Metrics, DurationsReadLikeAClock) {
  EXPECT_EQ(duration_text(4.6), "0:05");
  EXPECT_EQ(duration_text(245), "4:05");
  EXPECT_EQ(duration_text(3723), "1:02:03");
}

TEST(Metrics, AResumedRunTakesLaterStepsAnew) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int step = 1; step <= 4; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.loss = 1.0 / step;
      file.append(to_json(metrics));
    }
  }
  std::ofstream(path, std::ios::app) << R"({"step": 5, "lo)";
  MetricsFile file(path, 2);
  Json line = Json::object();
  line.set("step", 3);
  file.append(line);
  std::vector<std::int64_t> steps;
  std::istringstream text(read_text(path));
  for (std::string row; std::getline(text, row);) {
    steps.push_back(Json::parse(row, path).at("step").as_integer());
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(Metrics, ProgressLineShowsWhatAPersonWants) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.total_steps = 10;
  metrics.loss = 1.25;
  metrics.seconds_left = 61;
  const std::string line = progress_line(metrics);
  for (const char* part : {"step 3/10", "loss 1.25", "grad norm", "lr", "tokens/s", "left 1:01"}) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace phalanx
