// Reads the fields of a model's config.json with their ranges. Every error names file, field, value and rule.
#pragma once
#include "core/json.h"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

class ConfigReader {
 public:
  // `config` must outlive the reader; `where` begins every message, as a rule the path of config.json.
  ConfigReader(const Json& config, std::string where) : config_(config), where_(std::move(where)) {}

  // A field may be known by several names (num_experts, num_local_experts); the first one present counts. A JSON null is as
  // good as absent. Without a default the field is required.
  std::int64_t integer(std::initializer_list<std::string_view> names, std::optional<std::int64_t> fallback,
                       std::int64_t least, std::int64_t most) const;
  double number(std::string_view name, std::optional<double> fallback, double least, double most) const;
  bool boolean(std::string_view name, bool fallback) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  std::vector<std::int64_t> integers(std::string_view name) const;  // empty when absent
  std::vector<std::string> texts(std::string_view name) const;      // empty when absent
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // Refuses the value of a field: "FILE: FIELD is VALUE; RULE".
  [[noreturn]] void refuse(std::string_view name, const std::string& rule) const;

  // How many of the fields that config.json holds have been asked for.
  std::size_t fields_read() const { return read_.size(); }

  const Json& json() const { return config_; }
  const std::string& where() const { return where_; }

 private:
  const Json* find(std::string_view name) const;                           // nullptr when absent or null
  std::vector<Json> items(std::string_view name, const char* rule) const;  // of a list; empty when absent

  const Json& config_;
  std::string where_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace phalanx
