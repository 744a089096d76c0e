#include "models/spec/rope_scaling.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace phalanx {
namespace {

constexpr double kLarge = 1e12;

struct RopeFields {
  ConfigReader scaling;
  std::string kind;
  double theta;
  std::int64_t rotary_dim;
  std::int64_t max_positions;

  double required(std::string_view name) const { return scaling.number(name, std::nullopt, 0.0, kLarge); }
  double optional(std::string_view name, double fallback) const {
    // 0 means "not set" in released files, as in Transformers.
    const double value = scaling.number(name, fallback, 0.0, kLarge);
    return value == 0.0 ? fallback : value;
  }
};

// theta^(-2i / d) for i in [0, d/2), rounded to fp32 at each step.
std::vector<float> default_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<float> frequencies(rotary_dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    frequencies[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  return frequencies;
}

RopeSpec to_spec(const std::vector<float>& frequencies, double attention_scaling = 1.0) {
  return {{frequencies.begin(), frequencies.end()}, attention_scaling};
}

RopeSpec linear(const RopeFields& fields) {
  std::vector<float> frequencies = default_frequencies(fields.theta, fields.rotary_dim);
  const float factor = static_cast<float>(fields.required("factor"));
  for (float& frequency : frequencies) {
    frequency /= factor;
  }
  return to_spec(frequencies);
}

// arXiv 2309.00071: low frequencies are interpolated, high ones kept, with a linear ramp between.
RopeSpec yarn(const RopeFields& fields) {
  const double original = fields.required("original_max_position_embeddings");
  const double factor = fields.scaling.has("factor") ? fields.required("factor")
                                                     : static_cast<double>(fields.max_positions) / original;
  const auto magnitude = [](double scale, double weight) {
    return scale <= 1.0 ? 1.0 : 0.1 * weight * std::log(scale) + 1.0;
  };
  const double mscale = fields.optional("mscale", 0.0);
  const double mscale_all_dim = fields.optional("mscale_all_dim", 0.0);
  double attention_factor = mscale != 0.0 && mscale_all_dim != 0.0
                                ? magnitude(factor, mscale) / magnitude(factor, mscale_all_dim)
                                : magnitude(factor, 1.0);
  attention_factor = fields.scaling.number("attention_factor", attention_factor, 0.0, kLarge);

  const double width = static_cast<double>(fields.rotary_dim);
  const auto dimension_of = [&](double rotations) {
    return width * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(fields.theta));
  };
  double low = dimension_of(fields.optional("beta_fast", 32.0));
  double high = dimension_of(fields.optional("beta_slow", 1.0));
  if (fields.scaling.boolean("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  high = low == high ? high + 0.001 : high;

  std::vector<float> frequencies = default_frequencies(fields.theta, fields.rotary_dim);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    const float interpolated = frequencies[i] / static_cast<float>(factor);
    frequencies[i] = interpolated * (1.0f - keep) + frequencies[i] * keep;
  }
  return to_spec(frequencies, attention_factor);
}

RopeSpec llama3(const RopeFields& fields) {
  const float factor = static_cast<float>(fields.required("factor"));
  const float low_factor = static_cast<float>(fields.required("low_freq_factor"));
  const float high_factor = static_cast<float>(fields.required("high_freq_factor"));
  const float original = static_cast<float>(fields.required("original_max_position_embeddings"));
  std::vector<float> frequencies = default_frequencies(fields.theta, fields.rotary_dim);
  for (float& frequency : frequencies) {
    const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
    if (wavelength > original / low_factor) {
      frequency /= factor;
    } else if (wavelength >= original / high_factor) {
      const float smooth = (original / wavelength - low_factor) / (high_factor - low_factor);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return to_spec(frequencies);
}

}  // namespace

RopeSpec read_rope(const ConfigReader& config, std::int64_t head_dim, std::int64_t max_positions,
                   const RopeDefaults& defaults) {
  static const Json kNone = Json::object();
  const Json* scaling = nullptr;
  std::string section;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (scaling == nullptr && config.has(name)) {
      scaling = config.json().find(name);
      section = name;
      if (!scaling->is_object()) {
        config.refuse(name, "it must be an object with rope_type and its parameters");
      }
    }
  }
  const ConfigReader reader(scaling == nullptr ? kNone : *scaling,
                            scaling == nullptr ? config.where() : config.where() + ": " + section);
  RopeFields fields{reader, reader.text("rope_type", reader.text("type", "default")), 0.0, 0, max_positions};
  const double outer_theta = config.number("rope_theta", defaults.theta, 1.0, kLarge);
  fields.theta = reader.number("rope_theta", outer_theta, 1.0, kLarge);
  const char* const kPartial = "partial_rotary_factor";
  const double outer_partial =
      config.number(kPartial, defaults.partial_rotary_factor.value_or(1.0), 0.0, 1.0);
  const double partial = reader.number(kPartial, outer_partial, 0.0, 1.0);
  fields.rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * partial);
  const ConfigReader& stated_in = reader.has(kPartial) ? reader : config;
  if (fields.rotary_dim != head_dim && !defaults.partial_rotary_factor.has_value()) {
    stated_in.refuse(kPartial, "this family rotates the whole head, so it must be 1");
  }
  if (fields.rotary_dim < 2 || fields.rotary_dim % 2 != 0) {
    stated_in.refuse(kPartial, concat("it must leave an even number of head_dim = ", head_dim, " to rotate"));
  }
  // "dynamic" changes the frequencies only beyond max_position_embeddings, and longer sequences are refused.
  if (fields.kind == "default" || fields.kind == "dynamic") {
    return to_spec(default_frequencies(fields.theta, fields.rotary_dim));
  }
  if (fields.kind == "linear") {
    return linear(fields);
  }
  if (fields.kind == "yarn") {
    return yarn(fields);
  }
  if (fields.kind == "llama3") {
    return llama3(fields);
  }
  fail<ConfigError>(reader.where(), ": rope_type is \"", fields.kind,
                    "\"; the kinds that can be had are default, linear, dynamic, yarn, llama3");
}

}  // namespace phalanx
