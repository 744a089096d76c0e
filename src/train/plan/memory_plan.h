// What a run will hold in memory, from the model's spec alone: known before anything is loaded.
#pragma once
#include "config/run_config.h"
#include "core/json.h"
#include "models/spec/model_spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx {

struct MemoryItem {
  std::string name;         // "optimizer states"
  std::uint64_t bytes = 0;  // on this rank
  std::string how;          // "2 x 4 bytes a parameter"
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::uint64_t total() const;
};

// Weights, master weights, gradients, optimizer states, saved activations of one micro-batch and the largest passing buffers; on a
// GPU as they are at the moment that holds most.
MemoryPlan plan_training_memory(const ModelSpec& spec, const RunConfig& config, bool on_gpu = false);

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limit;  // what sets it: "the machine's free memory", "the control group's limit"
  bool on_gpu = false;
};

// What this process may still allocate: the least of MemAvailable and the limits of its control groups.
AvailableMemory available_host_memory();

// The same where train.device would compute: the free memory of the GPU, if it is to be one. Throws ConfigError for cuda where the
// driver shows none.
AvailableMemory available_memory(const std::string& device);

// Changes of the configuration, one or several together, that make the run fit, each with the total it leads to. Empty when
// none of those tried does.
std::vector<std::string> ways_to_fit(const ModelSpec& spec, const RunConfig& config,
                                     const AvailableMemory& available);

// Throws ConfigError with the largest items and what would make it fit, unless the plan fits.
void check_memory(const ModelSpec& spec, const RunConfig& config, const AvailableMemory& available);

std::string bytes_text(std::uint64_t bytes);  // "1.50 GiB"
std::string memory_table(const MemoryPlan& plan, const AvailableMemory& available);
Json memory_json(const MemoryPlan& plan, const AvailableMemory& available);

}  // namespace phalanx
