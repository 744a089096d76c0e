// The memory plan of a GPU against what recorded steps held there at most.
#include "core/file.h"
#include "train/plan/memory_plan.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

std::uint64_t bytes_of(const MemoryPlan& plan, const std::string& name) {
  for (const MemoryItem& item : plan.items) {
    if (item.name == name) {
      return item.bytes;
    }
  }
  return 0;
}

// Forward and backward, with the optimizer or without it.
std::uint64_t planned_bytes(const Json& record) {
  const ModelSpec spec = make_model_spec(record.at("config"), "config.json");
  RunConfig config;
  config.train.precision = "bf16_stochastic";
  config.train.micro_batch_size = record.at("batch").as_integer();
  config.data.sequence_length = record.at("sequence").as_integer();
  const auto text = [&](const char* name, const char* otherwise) {
    const Json* found = record.find(name);
    return found == nullptr ? std::string(otherwise) : found->as_string();
  };
  config.train.recompute = text("recompute", "none");
  config.optimizer.update = text("update", "after_backward");
  const std::string states = text("optimizer", "none");
  config.optimizer.states = states == "none" ? "fp32" : states;
  const MemoryPlan plan = plan_training_memory(spec, config, /*on_gpu=*/true);
  // The record says what torch allocated, which the engine's own memory is not.
  return plan.total() - bytes_of(plan, "engine") -
         (states == "none" ? bytes_of(plan, "optimizer states") : 0);
}

TEST(GpuPlan, IsWithinFivePercentOfRecordedPeaks) {
  for (const char* name : {"batch1", "batch4", "batch8", "batch16", "whole_step_12", "full48_batch1",
                           "full48_batch4", "recompute_full4", "recompute_selective4"}) {
    const std::string path = std::string(PHALANX_RESULTS) + "/step/" + name + ".json";
    const Json record = Json::parse(read_text(path), path);
    const double peak = record.at("results").as_array().front().at("allocated_gib").as_number();
    const double planned = static_cast<double>(planned_bytes(record)) / (1 << 30);
    EXPECT_NEAR(planned, peak, 0.05 * peak) << name;
  }
}

}  // namespace
}  // namespace phalanx
