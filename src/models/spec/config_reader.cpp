#include "models/spec/config_reader.h"

#include "core/error.h"

#include <cmath>

namespace phalanx {

const Json* ConfigReader::find(std::string_view name) const {
  const Json* value = config_.find(name);
  if (value == nullptr || value->is_null()) {
    return nullptr;
  }
  read_.emplace(name);
  return value;
}

void ConfigReader::refuse(std::string_view name, const std::string& rule) const {
  const Json* value = config_.find(name);
  fail<ConfigError>(where_, ": ", name, value == nullptr ? " is missing" : " is " + value->dump(), "; ",
                    rule);
}

std::int64_t ConfigReader::integer(std::initializer_list<std::string_view> names,
                                   std::optional<std::int64_t> fallback, std::int64_t least,
                                   std::int64_t most) const {
  for (const std::string_view name : names) {
    const Json* value = find(name);
    if (value == nullptr) {
      continue;
    }
    if (!value->is_integer() || value->as_integer() < least || value->as_integer() > most) {
      refuse(name, concat("it must be an integer from ", least, " to ", most));
    }
    return value->as_integer();
  }
  if (!fallback.has_value()) {
    refuse(*names.begin(), concat("it must be an integer from ", least, " to ", most));
  }
  return *fallback;
}

double ConfigReader::number(std::string_view name, std::optional<double> fallback, double least,
                            double most) const {
  const Json* value = find(name);
  if (value == nullptr && fallback.has_value()) {
    return *fallback;
  }
  if (value == nullptr || !value->is_number() ||
      !(value->as_number() >= least && value->as_number() <= most)) {
    refuse(name, concat("it must be a number from ", least, " to ", most));
  }
  return value->as_number();
}

bool ConfigReader::boolean(std::string_view name, bool fallback) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_bool()) {
    refuse(name, "it must be true or false");
  }
  return value->as_bool();
}

std::string ConfigReader::text(std::string_view name, std::string_view fallback) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (!value->is_string()) {
    refuse(name, "it must be a string");
  }
  return value->as_string();
}

std::vector<Json> ConfigReader::items(std::string_view name, const char* rule) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return {};
  }
  if (!value->is_array()) {
    refuse(name, rule);
  }
  return value->as_array();
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view name) const {
  constexpr const char* kRule = "it must be a list of integers";
  std::vector<std::int64_t> result;
  for (const Json& item : items(name, kRule)) {
    if (!item.is_integer()) {
      refuse(name, kRule);
    }
    result.push_back(item.as_integer());
  }
  return result;
}

std::vector<std::string> ConfigReader::texts(std::string_view name) const {
  constexpr const char* kRule = "it must be a list of strings";
  std::vector<std::string> result;
  for (const Json& item : items(name, kRule)) {
    if (!item.is_string()) {
      refuse(name, kRule);
    }
    result.push_back(item.as_string());
  }
  return result;
}

}  // namespace phalanx
