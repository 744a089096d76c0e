// phalanx export: a Hugging Face folder from a run or one of its checkpoints.
#include "commands.h"
#include "core/error.h"
#include "core/text.h"
#include "engine.h"
#include "train/plan/checkpoint_folder.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultShardSize = "5GB";

// "5GB" to bytes, in the units that Transformers takes.
std::int64_t parse_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 7> kUnits = {
      {{"", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  for (const auto& [unit, bytes] : kUnits) {
    if (error == std::errc() && unit == end && number * bytes >= 1 && number * bytes < 1e18) {
      return static_cast<std::int64_t>(number * bytes);
    }
  }
  fail<ConfigError>("--max-shard-size is ", in_quotes(text),
                    "; expected a positive number with a unit (KB, MB, GB, KiB, MiB, GiB), for example ",
                    kDefaultShardSize);
}

int export_model(const Arguments& arguments) {
  const std::string source = arguments.get("run"), output = arguments.get("--output");
  const std::int64_t shard_bytes =
      parse_size(arguments.has("--max-shard-size") ? arguments.get("--max-shard-size") : kDefaultShardSize);
  PHALANX_CHECK(fs::is_directory(source), ConfigError, source,
                ": no such folder; name a run (the --output of finetune) or one of its checkpoints");
  read_progress(find_checkpoint(source));
  PHALANX_CHECK(!fs::exists(output) || (fs::is_directory(output) && fs::is_empty(output)), ConfigError,
                output, ": already exists; choose another --output");
  Json input = Json::object();
  input.set("source", source);
  input.set("output", output);
  input.set("max_shard_bytes", shard_bytes);
  return run_engine("export", input);
}

}  // namespace

Command export_command() {
  Command command;
  command.name = "export";
  command.summary = "write a Hugging Face folder from a run or a checkpoint";
  command.options = {
      {"run", "RUN", "the run folder, or one of its checkpoints", Takes::kOne, true},
      {"--output", "DIR", "folder to write; must not exist", Takes::kOne, true},
      {"--max-shard-size", "SIZE",
       concat("largest weight file, for example 500MB (default ", kDefaultShardSize, ")"), Takes::kOne,
       false},
  };
  command.examples =
      "  phalanx export runs/first --output my-model\n"
      "  phalanx export runs/first/checkpoints/step-00000100 --output my-model-100 "
      "--max-shard-size 2GB\n";
  command.run = export_model;
  return command;
}

}  // namespace phalanx
