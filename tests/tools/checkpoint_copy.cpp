// checkpoint_copy IN OUT [--memory DTYPE] [--dtype DTYPE] [--layout source|released|merged] [--shard-bytes N] [--threads N]
//
// Loads a model folder into plain memory and saves it again, and prints as one line of JSON how long each took and how much anonymous
// memory beyond the model each needed. Tests compare OUT with IN; the benchmark reads the figures.
#include "core/error.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/model_spec.h"

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>

namespace phalanx {
namespace {

using Options = std::map<std::string, std::string>;

std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kib = 0;
  while (status >> word && word != "RssAnon:") {
  }
  status >> kib;
  return kib * 1024;
}

// Time and growth of anonymous memory of one call, sampled every millisecond.
Json measure(const std::function<void()>& call) {
  const std::int64_t before = anonymous_bytes();
  std::int64_t peak = before;
  std::jthread sampler([&peak](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      peak = std::max(peak, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto start = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  sampler.request_stop();
  sampler.join();
  Json out;
  out.set("seconds", seconds.count());
  out.set("anonymous_bytes", peak - before);
  return out;
}

Dtype dtype_option(const std::string& name) {
  const std::optional<Dtype> dtype = dtype_from_name(name);
  PHALANX_CHECK(dtype.has_value(), ConfigError, name, ": unknown dtype");
  return *dtype;
}

SaveModelOptions save_options(Options& options) {
  SaveModelOptions out;
  if (options.contains("--dtype")) {
    out.dtype = dtype_option(options["--dtype"]);
  }
  if (options.contains("--shard-bytes")) {
    out.max_shard_bytes = std::stoull(options["--shard-bytes"]);
  }
  const std::string layout = options["--layout"];
  out.layout = layout == "merged"     ? WeightLayout::kMerged
               : layout == "released" ? WeightLayout::kReleased
                                      : WeightLayout::kSource;
  return out;
}

Json copy(const std::string& in, const std::string& out, Options options) {
  const ModelSpec spec = load_model_spec(in);
  const std::string threads_text = options["--threads"];
  ThreadPool threads(threads_text.empty() ? 0 : std::stoi(threads_text));
  const Dtype dtype =
      options.contains("--memory") ? dtype_option(options["--memory"]) : spec.dtype.value_or(Dtype::kF32);
  std::vector<ParameterBuffer> parameters;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::int64_t model_bytes = 0;
  for (const ParameterSpec& parameter : spec.parameters) {
    const std::int64_t bytes = parameter.numel() * dtype_bits(dtype) / 8;
    memory.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes)));
    parameters.push_back({parameter.name, dtype, parameter.shape, memory.back().get()});
    model_bytes += bytes;
  }
  std::unique_ptr<HfCheckpoint> source;
  Json load = measure([&] {
    source = std::make_unique<HfCheckpoint>(in);
    load_parameters(spec.weights, *source, parameters, threads);
  });
  // The pages of the model itself came into being while it was loaded.
  load.set("extra_bytes", std::max<std::int64_t>(0, load.at("anonymous_bytes").as_integer() - model_bytes));
  Json save = measure([&] {
    save_model_folder(out, spec.config, spec.weights, parameters, source.get(), save_options(options),
                      threads);
  });
  save.set("extra_bytes", save.at("anonymous_bytes").as_integer());
  Json result;
  result.set("model_bytes", model_bytes);
  result.set("load", std::move(load));
  result.set("save", std::move(save));
  return result;
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) {
  if (argc < 3 || argc % 2 == 0) {
    std::cerr << "usage: checkpoint_copy IN OUT [--option value]...\n";
    return 2;
  }
  phalanx::Options options;
  for (int i = 3; i < argc; i += 2) {
    options[argv[i]] = argv[i + 1];
  }
  try {
    std::cout << phalanx::copy(argv[1], argv[2], options).dump() << '\n';
  } catch (const phalanx::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
