#include "train/plan/memory_plan.h"

#include "core/error.h"
#include "core/moment_code.h"
#include "core/suggest.h"
#include "train/plan/activation_memory.h"
#include "train/plan/gradient_bucket.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

namespace phalanx {
namespace {

// Bytes a parameter; 0: not kept.
struct BytesPerParameter {
  std::uint64_t weight, master, gradient;
};

// `fp32`: the parameter is held in fp32 whatever the precision of the others.
BytesPerParameter bytes_per_parameter(const TrainConfig& train, bool fp32) {
  const bool bf16_run = train.precision != "fp32";
  const std::uint64_t weight = bf16_run && !fp32 ? 2 : 4;
  const std::uint64_t master = train.precision == "bf16_master" && !fp32 ? 4 : 0;
  // Of a bf16 run, sums over several micro-batches are kept in fp32, beside the gradient of the micro-batch.
  const std::uint64_t sums = bf16_run && train.accumulation > 1 ? 4 : 0;
  return {weight, master, weight + sums};
}

std::uint64_t state_bytes(std::uint64_t elements, const std::string& states) {
  if (states == "8bit") {
    return 2 * (elements + static_cast<std::uint64_t>(moment_blocks(static_cast<std::int64_t>(elements))));
  }
  return elements * (states == "bf16" ? 4 : 8);
}

// Of all parameters and buffers: the optimizer makes no difference.
struct ParameterBytes {
  std::uint64_t weights = 0, master = 0, states = 0;
  std::uint64_t gradients = 0;  // all, or those of the largest layer where each is updated within backward
  std::uint64_t sums = 0;       // of the gradients, those there from one micro-batch to the next
};

ParameterBytes parameter_bytes(const ModelSpec& spec, const RunConfig& config) {
  ParameterBytes total;
  std::map<std::string, std::uint64_t> buckets;
  const bool all_at_once = config.optimizer.update == "after_backward";
  for (const ParameterSpec& parameter : spec.parameters) {
    const BytesPerParameter each = bytes_per_parameter(config.train, parameter.fp32);
    const auto count = static_cast<std::uint64_t>(parameter.numel());
    total.weights += count * each.weight;
    total.master += count * each.master;
    total.states += state_bytes(count, config.optimizer.states);
    total.sums += count * (each.gradient - each.weight);
    std::uint64_t& bucket = buckets[all_at_once ? "" : gradient_bucket(parameter.name)];
    bucket += count * each.gradient;
    total.gradients = std::max(total.gradients, bucket);
  }
  return total;
}

// Of the process apart from the tensors. Measured: 150 to 250 MiB in fp32; up to 790 MiB in bf16, for which the matrix library
// compiles a kernel for every number of tokens that an expert gets, and keeps a thousand of them. On a GPU CUDA's context, the
// libraries' workspaces, and what the allocator holds unused.
std::uint64_t engine_bytes(const TrainConfig& train, bool on_gpu) {
  const std::uint64_t mib = on_gpu ? 1500 : train.precision == "fp32" ? 400 : 900;
  return mib << 20;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << 100.0 * static_cast<double>(part) / static_cast<double>(whole)
      << "%";
  return out.str();
}

MemoryItem& item_named(MemoryPlan& plan, const char* name) {
  return *std::find_if(plan.items.begin(), plan.items.end(),
                       [&](const MemoryItem& item) { return item.name == name; });
}

// Activations go as gradients come: the peak is at the beginning of backward, in the head, or at its end, in the first layer. The GPU's
// allocator gives memory back at once, so that the one makes room for the other. `sums` bytes of the gradients are there throughout.
void follow_backward(MemoryPlan& plan, const ActivationMemory& activations, std::uint64_t sums) {
  MemoryItem& gradients = item_named(plan, "gradients");
  MemoryItem& kept = item_named(plan, "activations");
  MemoryItem& passing = item_named(plan, "passing buffers");
  const std::uint64_t begin = sums + activations.kept + activations.head_most;
  const std::uint64_t end = gradients.bytes + activations.restored + activations.layer_most;
  if (begin >= end) {
    gradients.bytes = sums;
    gradients.how = "at the beginning of backward, where the run holds most";
    kept.bytes = activations.kept;
    passing.bytes = activations.head_most;
  } else {
    kept.bytes = activations.restored;
    kept.how = "at the end of backward, where the run holds most";
    passing.bytes = activations.layer_most;
  }
}

}  // namespace

std::uint64_t MemoryPlan::total() const {
  std::uint64_t sum = 0;
  for (const MemoryItem& item : items) {
    sum += item.bytes;
  }
  return sum;
}

MemoryPlan plan_training_memory(const ModelSpec& spec, const RunConfig& config, bool on_gpu) {
  const BytesPerParameter each = bytes_per_parameter(config.train, /*fp32=*/false);
  const ParameterBytes all = parameter_bytes(spec, config);
  const auto tokens = static_cast<std::uint64_t>(config.train.micro_batch_size) *
                      static_cast<std::uint64_t>(config.data.sequence_length);
  const ActivationMemory activations =
      activation_memory(spec, {tokens, each.weight, config.train.recompute, on_gpu});
  const auto per_parameter = [](std::uint64_t bytes) { return concat(bytes, " bytes a parameter"); };
  const std::string& states = config.optimizer.states;
  MemoryPlan plan;
  plan.items = {
      {"weights", all.weights, per_parameter(each.weight)},
      {"master weights", all.master, per_parameter(each.master)},
      {"gradients", all.gradients,
       config.optimizer.update == "after_backward" ? per_parameter(each.gradient)
                                                   : "those of the largest layer"},
      {"optimizer states", all.states,
       states == "8bit" ? "2 bytes a parameter, 2 a block of 128" : per_parameter(states == "bf16" ? 4 : 8)},
      {"activations", activations.kept + activations.restored,
       concat(tokens, " tokens through ", spec.layers.size(), " layers")},
      {"engine", engine_bytes(config.train, on_gpu), "torch, its libraries and their scratch space"},
      {"passing buffers", std::max(activations.head_most, activations.layer_most),
       "one layer's rows or the head's logits"},
  };
  if (on_gpu) {
    follow_backward(plan, activations, all.sums);
  }
  std::erase_if(plan.items, [](const MemoryItem& item) { return item.bytes == 0; });
  return plan;
}

std::vector<std::string> ways_to_fit(const ModelSpec& spec, const RunConfig& config,
                                     const AvailableMemory& available) {
  RunConfig changed = config;
  std::vector<std::string> changes, ways;
  // Each change stays when the next one is tried, so that the last way is all of them together.
  const auto try_change = [&](const std::string& change) {
    changes.push_back(change);
    const std::uint64_t total = plan_training_memory(spec, changed, available.on_gpu).total();
    if (total <= available.bytes) {
      ways.push_back(concat(join(changes, " "), " (", bytes_text(total), ")"));
    }
  };
  if (config.train.micro_batch_size > 1) {
    changed.train.accumulation *= changed.train.micro_batch_size;
    changed.train.micro_batch_size = 1;
    try_change(concat("--micro-batch-size 1 --accumulation ", changed.train.accumulation));
  }
  if (config.train.precision != "bf16_stochastic") {
    changed.train.precision = "bf16_stochastic";
    try_change("--precision bf16_stochastic");
  }
  if (config.optimizer.states != "8bit") {
    changed.optimizer.states = "8bit";
    try_change("--optimizer-states 8bit");
  }
  if (config.train.recompute != "full") {
    changed.train.recompute = "full";
    try_change("--recompute full");
  }
  while (ways.empty() && changed.data.sequence_length > 256) {
    changed.data.sequence_length /= 2;
    if (plan_training_memory(spec, changed, available.on_gpu).total() <= available.bytes) {
      try_change(concat("--sequence-length ", changed.data.sequence_length));
    }
  }
  return ways;
}

void check_memory(const ModelSpec& spec, const RunConfig& config, const AvailableMemory& available) {
  const MemoryPlan plan = plan_training_memory(spec, config, available.on_gpu);
  if (plan.total() <= available.bytes) {
    return;
  }
  const std::vector<std::string> ways = ways_to_fit(spec, config, available);
  const std::string cure = ways.empty()
                               ? "no setting makes it fit: take a smaller model or a machine with more memory"
                               : "it fits with " + join(ways, "\n  or with ");
  fail<ConfigError>("memory: the run needs ", bytes_text(plan.total()), ", but ", bytes_text(available.bytes),
                    " are left (", available.limit, ")\n", memory_table(plan, available), cure);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << value << " " << kUnits[unit];
  return out.str();
}

std::string memory_table(const MemoryPlan& plan, const AvailableMemory& available) {
  std::ostringstream out;
  const auto line = [&](const std::string& name, std::uint64_t bytes, const std::string& note) {
    out << "  " << std::left << std::setw(18) << name << std::right << std::setw(12) << bytes_text(bytes)
        << "   " << note << "\n";
  };
  for (const MemoryItem& item : plan.items) {
    line(item.name, item.bytes, item.how);
  }
  line("total", plan.total(),
       available.bytes == 0 ? "" : percent(plan.total(), available.bytes) + " of what is available");
  line("available", available.bytes, available.limit);
  return out.str();
}

Json memory_json(const MemoryPlan& plan, const AvailableMemory& available) {
  Json items = Json::object();
  for (const MemoryItem& item : plan.items) {
    items.set(item.name, item.bytes);
  }
  Json json = Json::object();
  json.set("bytes", std::move(items));
  json.set("total_bytes", plan.total());
  json.set("available_bytes", available.bytes);
  json.set("available_limit", available.limit);
  json.set("fits", plan.total() <= available.bytes);
  return json;
}

}  // namespace phalanx
