// The table of all fields of a run configuration: one line each. Parsing, defaults, range checks, flags, `--help`, the dump
// beside the run and docs/command-line.md all come from it.
#pragma once
#include "config/run_config.h"
#include "core/json.h"

#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace phalanx {

using FieldPointer =
    std::variant<bool*, std::int64_t*, std::uint64_t*, double*, std::string*, std::optional<std::int64_t>*,
                 std::optional<double>*, std::vector<std::string>*>;

// What a value must satisfy beyond its type: a closed or half-open range, or one of `choices`.
struct FieldRule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is excluded
  bool below_max = false;  // max itself is excluded
  std::vector<std::string> choices;
};

// Whether a run that is resumed may have another value than the one it was started with.
enum class OnResume { kMustAgree, kMayDiffer };

struct Field {
  std::string name;                    // "optimizer.learning_rate"
  FieldPointer (*locate)(RunConfig&);  // where the value lives
  FieldRule rule;
  std::string flag;  // "--learning-rate"; empty: reached through --set and the recipe only
  OnResume on_resume;
  std::string doc;

  // Checks type and rule, then stores. Null and "" leave a field that has no default without a value. Throws ConfigError "found X; expected Y", without the place.
  void store(RunConfig& config, const Json& value) const;
  Json load(const RunConfig& config) const;
  bool is_text() const;  // text, or a list of it
  bool is_list() const;
  std::string expected() const;  // "a number in (0, 1]"
};

const std::vector<Field>& run_config_fields();
const Field* find_field(std::string_view name);
std::vector<std::string> field_names();
std::string field_reference();  // the table as text, for the terminal and the documentation

// The name in Phalanx of a field that other trainers call `name` ("per_device_train_batch_size"), or nothing.
std::string field_known_elsewhere_as(std::string_view name);

}  // namespace phalanx
