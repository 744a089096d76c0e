#include "models/spec/model_spec.h"

#include "core/error.h"
#include "core/suggest.h"
#include "models/spec/decoder_parameters.h"
#include "models/spec/registry.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace phalanx {
namespace {

// Weights of the matrix products that a token passes through, without embedding lookup and norms.
std::int64_t active_matrix_parameters(const ModelSpec& spec) {
  std::int64_t total = spec.vocab_size * spec.hidden_size;  // the head
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    total += 2 * spec.hidden_size * attention.head_dim * (attention.num_heads + attention.num_kv_heads);
    const std::int64_t expert = 3 * spec.hidden_size * layer.feed_forward.width;
    if (const auto& shared = layer.feed_forward.shared) {
      total += spec.hidden_size * (3 * shared->width + (shared->gated ? 1 : 0));
    }
    const auto& router = layer.feed_forward.router;
    total += router.has_value() ? router->top_k * expert + router->num_experts * spec.hidden_size : expert;
  }
  return total;
}

// "; the nearest is ...": the family whose spec reads the most fields of this config.json.
std::string nearest_by_fields(const Json& config, const std::string& where) {
  const char* nearest = "";
  std::size_t most = 0;
  for (const ModelFamily& family : model_families()) {
    const ConfigReader reader(config, where);
    try {
      family.make_spec(reader);
    } catch (const ConfigError&) {
      // What it read until then counts.
    }
    if (reader.fields_read() > most) {
      most = reader.fields_read();
      nearest = family.model_type;
    }
  }
  return most == 0 ? "" : concat("; the nearest, by the fields of this file, is ", nearest);
}

}  // namespace

std::int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t ModelSpec::num_parameters() const {
  std::int64_t total = 0;
  for (const ParameterSpec& parameter : parameters) {
    total += parameter.trained ? parameter.numel() : 0;
  }
  return total;
}

std::int64_t ModelSpec::num_active_parameters() const {
  std::int64_t idle = 0;
  for (const LayerSpec& layer : layers) {
    if (const auto& router = layer.feed_forward.router) {
      idle += (router->num_experts - router->top_k) * 3 * hidden_size * layer.feed_forward.width;
    }
  }
  return num_parameters() - idle;
}

double ModelSpec::flops_per_token(std::int64_t sequence_length) const {
  double total = 6.0 * static_cast<double>(active_matrix_parameters(*this));
  for (const LayerSpec& layer : layers) {
    // Scores and weighted values: 2 products of 2 FLOP per pair, half of the pairs, forward once and backward twice.
    const double keys = static_cast<double>(
        std::min(sequence_length, layer.attention.sliding_window.value_or(sequence_length)));
    total += 6.0 * keys * static_cast<double>(layer.attention.num_heads * layer.attention.head_dim);
  }
  return total;
}

ModelSpec load_model_spec(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  return make_model_spec(Json::parse_file(path), path);
}

ModelSpec make_model_spec(const Json& config, const std::string& where) {
  PHALANX_CHECK(config.is_object(), ConfigError, where, ": a model's configuration is a JSON object, not ",
                config.kind());
  const ConfigReader reader(config, where);
  const std::string type = reader.text("model_type", "");
  if (type.empty()) {
    reader.refuse("model_type", "it must name the model family, one of " + join(registered_families(), ", "));
  }
  if (reader.has("quantization_config")) {
    reader.refuse("quantization_config",
                  "quantised weights are not trained: load the model with Transformers, dequantise it "
                  "(model.dequantize()), save it as bfloat16 and give that folder");
  }
  const ModelFamily* family = find_family(type);
  if (family == nullptr) {
    const std::string meant = did_you_mean(type, registered_families());
    fail<ConfigError>(where, ": model_type is \"", type, "\", a family that is not built; built are ",
                      join(registered_families(), ", "),
                      meant.empty() ? nearest_by_fields(config, where) : meant,
                      "; docs/adding-a-model.md shows how to add one");
  }
  ModelSpec spec = family->make_spec(reader);
  spec.architecture = family->architecture;
  spec.parameters = decoder_parameters(spec);
  spec.weights = family->make_weights(spec);
  return spec;
}

std::vector<std::string> registered_families() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) {
    names.push_back(family.model_type);
  }
  return names;
}

}  // namespace phalanx
