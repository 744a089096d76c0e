// A run configuration in the making: values from the recipe, --set and flags, each with the place where it was written, so
// that a message can say `recipe.yaml:12`.
#pragma once
#include "config/run_config.h"
#include "core/json.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

// Plain text as a value: a JSON literal, array, object or quoted string; a number as people write it (1e-5, .5, +3, 010 is
// ten); else the text itself. Words that only some dialects read as booleans (yes, off) stay text: a boolean field reads them.
Json value_from_text(std::string_view text);

class ConfigDraft {
 public:
  // Adds every value of `values`, an object nested by section. `place(key)` names where "optimizer.eps" was written.
  void merge(const Json& values, const std::function<std::string(const std::string& key)>& place);
  void set(const std::string& key, Json value, const std::string& place);  // a later value wins
  // The same with a value as typed on a command line: a field that is text takes "5" and "true" as they are.
  void set_text(const std::string& key, const std::string& text, const std::string& place);
  void assign(const std::string& assignment);  // "optimizer.eps=1e-6", as --set takes it. Throws ConfigError.

  // Checks everything and fills in the defaults. Throws ConfigError with one line for each problem: place, field, what was
  // found, what is allowed.
  RunConfig resolve() const;

 private:
  struct Entry {
    std::string key;
    Json value;
    std::string place;
  };
  std::string place_of(std::string_view key) const;
  void check_together(const RunConfig& config, std::vector<std::string>& problems) const;

  std::vector<Entry> entries_;
};

}  // namespace phalanx
