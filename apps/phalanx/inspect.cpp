// phalanx inspect: what a model folder holds, and what is wrong with it.
#include "bind/engine_c_api.h"
#include "commands.h"
#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"
#include "io/hf_checkpoint.h"
#include "model_folder.h"
#include "models/spec/model_spec.h"
#include "models/spec/weight_match.h"
#include "train/plan/memory_plan.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>

namespace phalanx {
namespace {

// Tokens of the sequence for which FLOP per token are given.
std::int64_t flop_length(const ModelSpec& spec) { return std::min<std::int64_t>(4096, spec.max_positions); }

struct Inspected {
  ModelSpec spec;
  HfCheckpoint checkpoint;
  std::vector<std::string> carried;  // tensors of other parts, written back on export
  std::string problems;              // of the weights against config.json; empty: none
};

Inspected inspect_folder(const std::string& folder) {
  Inspected found{read_model_spec(folder), HfCheckpoint(folder), {}, ""};
  try {
    for (const StoredTensor& tensor : match_weights(found.spec.weights, found.checkpoint).carried) {
      found.carried.push_back(tensor.info->name);
    }
  } catch (const IoError& error) {
    found.problems = error.what();
  }
  return found;
}

Json stored_bytes(const HfCheckpoint& checkpoint) {
  std::map<std::string, std::uint64_t> bytes;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    bytes[dtype_name(tensor.info->dtype)] += tensor.info->bytes();
  }
  Json json = Json::object();
  for (const auto& [dtype, size] : bytes) {
    json.set(dtype, size);
  }
  return json;
}

Json tensor_list(const HfCheckpoint& checkpoint) {
  Json list = Json::array();
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    Json shape = Json::array();
    for (const std::int64_t size : tensor.info->shape) {
      shape.push_back(size);
    }
    Json entry = Json::object();
    entry.set("name", tensor.info->name);
    entry.set("dtype", dtype_name(tensor.info->dtype));
    entry.set("shape", std::move(shape));
    entry.set("file", tensor.file->path());
    list.push_back(std::move(entry));
  }
  return list;
}

// The layers with experts are alike in every family that is built, so the last of them speaks for all.
Json experts_json(const ModelSpec& spec) {
  Json json;
  std::int64_t layers = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.feed_forward.router) {
      ++layers;
      json.set("experts", layer.feed_forward.router->num_experts);
      json.set("experts_per_token", layer.feed_forward.router->top_k);
      json.set("width", layer.feed_forward.width);
      json.set("shared_width", layer.feed_forward.shared ? layer.feed_forward.shared->width : 0);
    }
  }
  json.set("layers", layers);
  return json;
}

Json summary(const Inspected& found) {
  const ModelSpec& spec = found.spec;
  const AttentionSpec& attention = spec.layers.front().attention;
  Json json = Json::object();
  json.set("folder", found.checkpoint.folder());
  json.set("family", spec.family);
  json.set("architecture", spec.architecture);
  json.set("layers", static_cast<std::int64_t>(spec.layers.size()));
  json.set("hidden_size", spec.hidden_size);
  json.set("heads", attention.num_heads);
  json.set("kv_heads", attention.num_kv_heads);
  json.set("head_dim", attention.head_dim);
  json.set("mixture", experts_json(spec));
  json.set("vocab_size", spec.vocab_size);
  json.set("tied_head", spec.tied_head);
  json.set("max_positions", spec.max_positions);
  json.set("parameters", spec.num_parameters());
  json.set("active_parameters", spec.num_active_parameters());
  json.set("flop_sequence_length", flop_length(spec));
  json.set("flop_per_token", spec.flops_per_token(flop_length(spec)));
  json.set("files", static_cast<std::int64_t>(found.checkpoint.files().size()));
  json.set("tensors", static_cast<std::int64_t>(found.checkpoint.tensors().size()));
  json.set("stored_bytes", stored_bytes(found.checkpoint));
  Json carried = Json::array();
  for (const std::string& name : found.carried) {
    carried.push_back(name);
  }
  json.set("carried_through", std::move(carried));
  json.set("problems", found.problems);
  return json;
}

std::string short_number(double value) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) {
    value /= 1000;
  }
  std::ostringstream out;
  out << std::setprecision(3) << value << kUnits[unit];
  return out.str();
}

void print_summary(const Json& json) {
  const auto line = [](const char* name, const auto&... pieces) {
    std::cout << "  " << std::left << std::setw(18) << name << concat(pieces...) << "\n";
  };
  const auto integer = [&](const char* name) { return json.at(name).as_integer(); };
  const Json& mixture = json.at("mixture");
  std::cout << json.at("folder").as_string() << "\n";
  line("family", json.at("family").as_string(), " (", json.at("architecture").as_string(), ")");
  line("layers", integer("layers"), ", hidden size ", integer("hidden_size"));
  line("attention", integer("heads"), " heads, ", integer("kv_heads"), " of keys and values, head size ",
       integer("head_dim"));
  if (mixture.at("layers").as_integer() > 0) {
    const std::int64_t shared = mixture.at("shared_width").as_integer();
    line("experts", mixture.at("experts").as_integer(), " in ", mixture.at("layers").as_integer(),
         " layers, ", mixture.at("experts_per_token").as_integer(), " per token, width ",
         mixture.at("width").as_integer(),
         shared > 0 ? concat(", beside a shared one of width ", shared) : "");
  }
  line("vocabulary", integer("vocab_size"),
       json.at("tied_head").as_bool() ? ", head tied to the embedding" : "");
  line("positions", integer("max_positions"));
  line("parameters", short_number(static_cast<double>(integer("parameters"))), ", of which a token uses ",
       short_number(static_cast<double>(integer("active_parameters"))));
  line("FLOP per token", short_number(json.at("flop_per_token").as_number()),
       " forward + backward, sequences of ", integer("flop_sequence_length"));
  std::vector<std::string> stored;
  for (const auto& [dtype, bytes] : json.at("stored_bytes").as_object()) {
    stored.push_back(concat(dtype, " ", bytes_text(static_cast<std::uint64_t>(bytes.as_integer()))));
  }
  line("on disk", integer("tensors"), " tensors in ", integer("files"), " files: ", join(stored, ", "));
  if (const std::size_t count = json.at("carried_through").as_array().size(); count > 0) {
    line("carried through", count, " tensors of other parts, written back unchanged: ",
         printable(json.at("carried_through").as_array().front().as_string()), count > 1 ? ", ..." : "");
  }
}

void print_tensors(const HfCheckpoint& checkpoint) {
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    std::cout << "  " << std::left << std::setw(6) << dtype_name(tensor.info->dtype) << std::setw(20)
              << shape_text(tensor.info->shape) << printable(tensor.info->name) << "\n";
  }
}

int inspect(const Arguments& arguments) {
  const Inspected found = inspect_folder(find_model(arguments.get("model")));
  Json json = summary(found);
  if (arguments.has("--json")) {
    if (arguments.has("--tensors")) {
      json.set("tensor_list", tensor_list(found.checkpoint));
    }
    std::cout << json.dump(2) << "\n";
  } else {
    print_summary(json);
    if (arguments.has("--tensors")) {
      print_tensors(found.checkpoint);
    }
  }
  PHALANX_CHECK(found.problems.empty(), IoError, found.problems);
  return kPhalanxOk;
}

}  // namespace

Command inspect_command() {
  Command command;
  command.name = "inspect";
  command.summary = "show what a model folder holds, and check its files";
  command.options = {
      {"model", "DIR_OR_ID", "model folder, or a hub id", Takes::kOne, true},
      {"--tensors", "", "list all tensors", Takes::kNothing, false},
      {"--json", "", "print JSON", Takes::kNothing, false},
  };
  command.examples =
      "  phalanx inspect Qwen3-30B-A3B\n"
      "  phalanx inspect runs/first/model --tensors\n";
  command.run = inspect;
  return command;
}

}  // namespace phalanx
