#include "train/plan/memory_plan.h"

#include "core/error.h"
#include "core/suggest.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace phalanx {
namespace {

// Bytes a parameter; 0: not kept.
struct BytesPerParameter {
  std::uint64_t weight, master, gradient;
  std::uint64_t moments = 8;  // two in fp32
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

// Of all parameters and buffers: the optimizer makes no difference.
BytesPerParameter parameter_bytes(const ModelSpec& spec, const TrainConfig& train) {
  BytesPerParameter total{0, 0, 0, 0};
  for (const ParameterSpec& parameter : spec.parameters) {
    const BytesPerParameter each = bytes_per_parameter(train, parameter.fp32);
    const auto count = static_cast<std::uint64_t>(parameter.numel());
    total.weight += count * each.weight;
    total.master += count * each.master;
    total.gradient += count * each.gradient;
    total.moments += count * each.moments;
  }
  return total;
}

// Of the process apart from the tensors. Measured: 150 to 250 MiB in fp32; up to 790 MiB in bf16, for which the matrix library
// compiles a kernel for every number of tokens that an expert gets, and keeps a thousand of them.
std::uint64_t engine_bytes(const TrainConfig& train) {
  return std::uint64_t{train.precision == "fp32" ? 400u : 900u} << 20;
}

// Saved for backward by one layer, in elements of the activations' type and in bytes of fixed types.
// Legend: T tokens, H hidden size, E experts, K experts per token, I expert width, D head size.
std::uint64_t saved_bytes(const ModelSpec& spec, const LayerSpec& layer, std::uint64_t tokens,
                          std::uint64_t element) {
  const auto hidden = static_cast<std::uint64_t>(spec.hidden_size);
  const auto heads = static_cast<std::uint64_t>(layer.attention.num_heads);
  const auto kv_heads = static_cast<std::uint64_t>(layer.attention.num_kv_heads);
  const auto head_dim = static_cast<std::uint64_t>(layer.attention.head_dim);
  const auto width = static_cast<std::uint64_t>(layer.feed_forward.width);
  const std::uint64_t projections = (heads + 2 * kv_heads) * head_dim;  // q, k, v
  std::uint64_t elements = 2 * hidden                                   // inputs of the two halves
                           + 2 * hidden                                 // the same, normalised
                           + 2 * projections                            // before and after norm and RoPE
                           + heads * head_dim;                          // attention output
  std::uint64_t fixed = 4 * (heads + 2);                                // log-sum-exp, rstd of the norms
  if (layer.feed_forward.router) {
    const auto top_k = static_cast<std::uint64_t>(layer.feed_forward.router->top_k);
    const auto experts = static_cast<std::uint64_t>(layer.feed_forward.router->num_experts);
    elements += top_k * 2 * width;               // pre-activations
    fixed += 4 * experts + top_k * (4 + 8 + 8);  // scores; weights, experts and row order
    if (layer.feed_forward.shared) {
      elements += 2 * static_cast<std::uint64_t>(layer.feed_forward.shared->width) + 1;
    }
  } else {
    elements += 2 * width;
  }
  return tokens * (elements * element + fixed);
}

// The largest buffers that live only while one layer or the head runs.
std::uint64_t passing_bytes(const ModelSpec& spec, std::uint64_t tokens, std::uint64_t element) {
  constexpr std::uint64_t kHeadChunk = 1024;  // tokens whose logits exist at a time
  const auto hidden = static_cast<std::uint64_t>(spec.hidden_size);
  const std::uint64_t head =
      3 * std::min(tokens, kHeadChunk) * static_cast<std::uint64_t>(spec.vocab_size) * 4;
  std::uint64_t layer_most = 0;
  for (const LayerSpec& layer : spec.layers) {
    const auto width = static_cast<std::uint64_t>(layer.feed_forward.width);
    const std::uint64_t top_k =
        layer.feed_forward.router ? static_cast<std::uint64_t>(layer.feed_forward.router->top_k) : 1;
    // Gathered rows, their gradients, activations and pre-activation gradients of the experts' backward pass.
    layer_most = std::max(layer_most, tokens * top_k * (2 * hidden + 4 * width) * element);
  }
  return std::max(head, layer_most);
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << 100.0 * static_cast<double>(part) / static_cast<double>(whole)
      << "%";
  return out.str();
}

}  // namespace

std::uint64_t MemoryPlan::total() const {
  std::uint64_t sum = 0;
  for (const MemoryItem& item : items) {
    sum += item.bytes;
  }
  return sum;
}

MemoryPlan plan_training_memory(const ModelSpec& spec, const RunConfig& config) {
  const BytesPerParameter each = bytes_per_parameter(config.train, /*fp32=*/false);
  const BytesPerParameter all = parameter_bytes(spec, config.train);
  const auto tokens = static_cast<std::uint64_t>(config.train.micro_batch_size) *
                      static_cast<std::uint64_t>(config.data.sequence_length);
  std::uint64_t saved = 0;
  for (const LayerSpec& layer : spec.layers) {
    saved += saved_bytes(spec, layer, tokens, each.weight);
  }
  const auto per_parameter = [](std::uint64_t bytes) { return concat(bytes, " bytes a parameter"); };
  MemoryPlan plan;
  plan.items = {
      {"weights", all.weight, per_parameter(each.weight)},
      {"master weights", all.master, per_parameter(each.master)},
      {"gradients", all.gradient, per_parameter(each.gradient)},
      {"optimizer states", all.moments, per_parameter(each.moments)},
      {"activations", saved, concat(tokens, " tokens through ", spec.layers.size(), " layers")},
      {"engine", engine_bytes(config.train), "torch, its libraries and their scratch space"},
      {"passing buffers", passing_bytes(spec, tokens, each.weight), "one layer's rows or the head's logits"},
  };
  std::erase_if(plan.items, [](const MemoryItem& item) { return item.bytes == 0; });
  return plan;
}

std::vector<std::string> ways_to_fit(const ModelSpec& spec, const RunConfig& config,
                                     std::uint64_t available) {
  RunConfig changed = config;
  std::vector<std::string> changes, ways;
  // Each change stays when the next one is tried, so that the last way is all of them together.
  const auto try_change = [&](const std::string& change) {
    changes.push_back(change);
    const std::uint64_t total = plan_training_memory(spec, changed).total();
    if (total <= available) {
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
  while (ways.empty() && changed.data.sequence_length > 256) {
    changed.data.sequence_length /= 2;
    if (plan_training_memory(spec, changed).total() <= available) {
      try_change(concat("--sequence-length ", changed.data.sequence_length));
    }
  }
  return ways;
}

void check_memory(const ModelSpec& spec, const RunConfig& config, const AvailableMemory& available) {
  const MemoryPlan plan = plan_training_memory(spec, config);
  if (plan.total() <= available.bytes) {
    return;
  }
  const std::vector<std::string> ways = ways_to_fit(spec, config, available.bytes);
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
