#include "config/field.h"

#include "core/error.h"
#include "core/suggest.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace phalanx {
namespace {

// How messages write a number: 1e-05, 16777216.
std::string number_text(double value) {
  std::ostringstream out;
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  out << std::setprecision(whole && std::abs(value) < 1e9 ? 10 : 6) << value;
  return out.str();
}

std::string range_text(const FieldRule& rule) {
  const bool has_min = std::isfinite(rule.min), has_max = std::isfinite(rule.max);
  if (!has_min && !has_max) {
    return "";
  }
  return concat(" in ", rule.above_min ? "(" : "[", number_text(rule.min), ", ", number_text(rule.max),
                rule.below_max ? ")" : "]");
}

bool in_range(const FieldRule& rule, double value) {
  return (rule.above_min ? value > rule.min : value >= rule.min) &&
         (rule.below_max ? value < rule.max : value <= rule.max);
}

// Each `convert` returns false when the JSON value has the wrong kind or breaks the rule.
bool convert(const Json& json, const FieldRule&, bool& out) {
  if (json.is_string()) {  // YAML 1.1's other spellings
    const std::string& text = json.as_string();
    out = text == "yes" || text == "Yes" || text == "on" || text == "On" || text == "True" || text == "YES" ||
          text == "ON";
    return out || text == "no" || text == "No" || text == "off" || text == "Off" || text == "False" ||
           text == "NO" || text == "OFF";
  }
  if (!json.is_bool()) {
    return false;
  }
  out = json.as_bool();
  return true;
}

bool convert(const Json& json, const FieldRule& rule, double& out) {
  if (!json.is_number()) {
    return false;
  }
  out = json.as_number();
  return in_range(rule, out);
}

bool convert(const Json& json, const FieldRule& rule, std::int64_t& out) {
  if (json.is_integer()) {
    out = json.as_integer();
    return in_range(rule, static_cast<double>(out));
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53: 1e4 is an integer to a person, 0.5 is not
  double value = 0;
  if (!convert(json, rule, value) || value != std::floor(value) || std::abs(value) > kExact) {
    return false;
  }
  out = static_cast<std::int64_t>(value);
  return true;
}

bool convert(const Json& json, const FieldRule& rule, std::uint64_t& out) {
  std::int64_t value = 0;
  if (!convert(json, rule, value) || value < 0) {
    return false;
  }
  out = static_cast<std::uint64_t>(value);
  return true;
}

bool convert(const Json& json, const FieldRule& rule, std::string& out) {
  if (!json.is_string()) {
    return false;
  }
  out = json.as_string();
  if (rule.choices.empty()) {
    return !out.empty();
  }
  return std::find(rule.choices.begin(), rule.choices.end(), out) != rule.choices.end();
}

bool convert(const Json& json, const FieldRule& rule, std::vector<std::string>& out) {
  out.clear();
  std::string item;
  if (json.is_string()) {
    out.push_back(json.as_string());
    return convert(json, rule, item);
  }
  if (!json.is_array()) {
    return false;
  }
  for (const Json& each : json.as_array()) {
    if (!convert(each, rule, item)) {
      return false;
    }
    out.push_back(item);
  }
  return true;
}

template <class T>
bool convert(const Json& json, const FieldRule& rule, std::optional<T>& out) {
  T value{};
  const bool good = convert(json, rule, value);
  out = value;
  return good;
}

// A field without a value is null.
Json to_json(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::vector<std::string>& values) {
  Json array = Json::array();
  for (const std::string& value : values) {
    array.push_back(value);
  }
  return array;
}
template <class T>
Json to_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
template <class T>
Json to_json(const T& value) {
  return Json(value);
}

const char* kind_text(bool*) { return "true or false"; }
const char* kind_text(std::int64_t*) { return "an integer"; }
const char* kind_text(std::uint64_t*) { return "an integer"; }
const char* kind_text(double*) { return "a number"; }
const char* kind_text(std::string*) { return "text"; }
const char* kind_text(std::optional<std::int64_t>*) { return "an integer"; }
const char* kind_text(std::optional<double>*) { return "a number"; }
const char* kind_text(std::vector<std::string>*) { return "a list of text"; }

std::string found_text(const Json& value) {
  constexpr std::size_t kShown = 60;
  std::string text = value.dump();
  if (text.size() > kShown) {
    text = text.substr(0, kShown) + "...";
  }
  return concat(text, value.is_null() ? " (no value)" : concat(" (", value.kind(), ")"));
}

}  // namespace

void Field::store(RunConfig& config, const Json& value) const {
  const bool nothing = value.is_null() || value == Json("");
  if (nothing && load(RunConfig()).is_null()) {
    return;
  }
  const bool good = std::visit([&](auto* target) { return convert(value, rule, *target); }, locate(config));
  if (good) {
    return;
  }
  std::string hint = value.is_string() ? did_you_mean(value.as_string(), rule.choices) : "";
  if (is_text() && (value.is_number() || value.is_bool())) {
    hint = "; put it in quotes";
  }
  fail<ConfigError>("found ", found_text(value), "; expected ", expected(), hint);
}

Json Field::load(const RunConfig& config) const {
  RunConfig copy = config;
  return std::visit([](auto* source) { return to_json(*source); }, locate(copy));
}

bool Field::is_list() const {
  RunConfig probe;
  return std::holds_alternative<std::vector<std::string>*>(locate(probe));
}

bool Field::is_text() const {
  RunConfig probe;
  return is_list() || std::holds_alternative<std::string*>(locate(probe));
}

std::string Field::expected() const {
  if (!rule.choices.empty()) {
    return "one of " + join(rule.choices, ", ");
  }
  RunConfig probe;
  return std::visit([](auto* target) { return kind_text(target); }, locate(probe)) + range_text(rule);
}

std::string field_reference() {
  std::ostringstream out;
  const RunConfig defaults;
  std::string section;
  for (const Field& field : run_config_fields()) {
    const std::size_t dot = field.name.find('.');
    const std::string in = dot == std::string::npos ? "" : field.name.substr(0, dot);
    if (in != section) {
      out << "\n";
      section = in;
    }
    const Json value = field.load(defaults);
    const bool unset = value.is_null() || value == Json::array();
    out << field.name << (field.flag.empty() ? "" : "  " + field.flag) << "\n    " << field.doc << "\n    "
        << field.expected() << "; default " << (unset ? "none" : value.dump())
        << (field.on_resume == OnResume::kMayDiffer ? "; may differ when the run is resumed" : "") << "\n";
  }
  return out.str();
}

}  // namespace phalanx
