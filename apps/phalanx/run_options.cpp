#include "run_options.h"

#include "config/config_draft.h"
#include "config/field.h"
#include "core/error.h"
#include "core/suggest.h"
#include "recipe_file.h"

#include <algorithm>

namespace phalanx {
namespace {

std::string value_name(const Field& field) {
  if (!field.rule.choices.empty()) {
    return join(field.rule.choices, "|");
  }
  if (field.is_list()) {
    return "FILE";
  }
  return field.is_text() ? "TEXT" : "N";
}

std::string doc_of(const Field& field) {
  const Json value = field.load(RunConfig());
  const bool has_default = !value.is_null() && value != Json::array();
  return field.doc +
         (has_default ? concat(" (default ", value.is_string() ? value.as_string() : value.dump(), ")") : "");
}

}  // namespace

std::vector<Option> run_options(const std::vector<std::string>& fields) {
  std::vector<Option> options = {
      {"--config", "RECIPE.yaml", "recipe with any of the fields; flags and --set win over it", Takes::kOne,
       false},
      {"--set", "FIELD=VALUE", "sets any field, for example --set optimizer.beta2=0.98; may be repeated",
       Takes::kEach, false},
  };
  for (const Field& field : run_config_fields()) {
    const bool wanted = fields.empty() || std::find(fields.begin(), fields.end(), field.name) != fields.end();
    if (wanted && !field.flag.empty()) {
      options.push_back({field.flag, value_name(field), doc_of(field),
                         field.is_list() ? Takes::kMany : Takes::kOne, false});
    }
  }
  return options;
}

RunConfig run_config_of(const Arguments& arguments) {
  ConfigDraft draft;
  if (arguments.has("--config")) {
    read_recipe(arguments.get("--config"), draft);
  }
  for (const std::string& assignment : arguments.all("--set")) {
    draft.assign(assignment);
  }
  for (const Field& field : run_config_fields()) {
    if (field.flag.empty() || !arguments.has(field.flag)) {
      continue;
    }
    if (!field.is_list()) {
      draft.set_text(field.name, arguments.get(field.flag), field.flag);
      continue;
    }
    Json files = Json::array();
    for (const std::string& file : arguments.all(field.flag)) {
      files.push_back(file);
    }
    draft.set(field.name, std::move(files), field.flag);
  }
  return draft.resolve();
}

void require_field(const RunConfig& config, const std::string& name) {
  const Field& field = *find_field(name);
  const Json value = field.load(config);
  PHALANX_CHECK(!value.is_null() && value != Json::array(), ConfigError, name, " is not set: ", field.doc,
                "; write `", field.flag, " ", value_name(field), "`, or `", name, "` in the recipe");
}

}  // namespace phalanx
