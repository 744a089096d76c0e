#include "config/config_draft.h"

#include "config/field.h"
#include "core/error.h"
#include "core/suggest.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace phalanx {
namespace {

bool is_section(std::string_view key) {
  const auto& fields = run_config_fields();
  return std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
    return field.name.size() > key.size() && field.name.starts_with(key) && field.name[key.size()] == '.';
  });
}

std::string unknown_field(const std::string& key) {
  std::string hint = did_you_mean(key, field_names());
  if (const std::string ours = field_known_elsewhere_as(key); hint.empty() && !ours.empty()) {
    hint = "; here it is called '" + ours + "'";
  }
  return "unknown field" + hint + (hint.empty() ? "; `phalanx finetune --help-fields` lists them all" : "");
}

template <class Number>
bool parse_whole(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Json value_from_text(std::string_view text) {
  if (text == "true" || text == "false") {
    return Json(text == "true");
  }
  if (text.empty() || text == "null" || text == "~") {
    return Json();
  }
  if (text.front() == '[' || text.front() == '{' || text.front() == '"') {
    return Json::parse(text, "value");
  }
  const std::string_view digits = text.front() == '+' ? text.substr(1) : text;
  std::int64_t integer = 0;
  if (parse_whole(digits, integer)) {
    return Json(integer);
  }
  double number = 0;
  // from_chars also reads "inf" and "nan", which are no values of any field.
  if (digits.find_first_of("0123456789") != std::string_view::npos && parse_whole(digits, number) &&
      std::isfinite(number)) {
    return Json(number);
  }
  return Json(text);
}

void ConfigDraft::merge(const Json& values, const std::function<std::string(const std::string&)>& place) {
  const std::function<void(const Json&, const std::string&)> add = [&](const Json& object,
                                                                       const std::string& prefix) {
    for (const auto& [name, value] : object.as_object()) {
      const std::string key = prefix.empty() ? name : prefix + "." + name;
      const bool leaf = find_field(key) != nullptr || !value.is_object() || value.as_object().empty();
      if (!leaf) {
        add(value, key);
      } else if (!(is_section(key) &&
                   (value.is_null() || value.is_object()))) {  // an empty section says nothing
        set(key, value, place(key));
      }
    }
  };
  add(values, "");
}

void ConfigDraft::set(const std::string& key, Json value, const std::string& place) {
  const auto same = [&](const Entry& entry) { return entry.key == key; };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), same), entries_.end());
  entries_.push_back({key, std::move(value), place});
}

void ConfigDraft::set_text(const std::string& key, const std::string& text, const std::string& place) {
  const Field* field = find_field(key);
  const bool literal =
      field != nullptr && field->is_text() && !text.starts_with('[') && !text.starts_with('"');
  set(key, literal ? Json(text) : value_from_text(text), place);
}

void ConfigDraft::assign(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  PHALANX_CHECK(equals != std::string::npos && equals > 0, ConfigError, "--set ", assignment,
                ": found no 'field=value'; write for example --set optimizer.learning_rate=1e-5");
  const std::string place = "--set " + assignment;
  try {
    set_text(assignment.substr(0, equals), assignment.substr(equals + 1), place);
  } catch (const IoError& error) {
    fail<ConfigError>(place, ": ", error.what(),
                      "; quote text as the shell needs it: --set 'data.train=[\"a.jsonl\"]'");
  }
}

RunConfig ConfigDraft::resolve() const {
  RunConfig config;
  std::vector<std::string> problems;
  for (const Entry& entry : entries_) {
    const auto report = [&](const std::string& what) {
      problems.push_back(entry.place + ": " + entry.key + ": " + what);
    };
    const Field* field = find_field(entry.key);
    if (field != nullptr) {
      try {
        field->store(config, entry.value);
      } catch (const ConfigError& error) {
        report(error.what());
      }
    } else if (is_section(entry.key)) {
      report(concat("found ", entry.value.dump(), "; expected a section: indent its fields below it"));
    } else {
      report(unknown_field(entry.key));
    }
  }
  if (problems.empty()) {
    check_together(config, problems);
  }
  PHALANX_CHECK(problems.empty(), ConfigError, join(problems, "\n"));
  return config;
}

std::string ConfigDraft::place_of(std::string_view key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  return (found == entries_.end() ? "default" : found->place) + ": " + std::string(key) + ": ";
}

// Rules that need more than one field.
void ConfigDraft::check_together(const RunConfig& config, std::vector<std::string>& problems) const {
  if (config.schedule.warmup_steps > 0 && config.schedule.warmup_ratio > 0) {
    problems.push_back(place_of("schedule.warmup_ratio") +
                       "schedule.warmup_steps is set too; keep one of them");
  }
  if (config.train.max_steps && config.schedule.warmup_steps > *config.train.max_steps) {
    problems.push_back(concat(place_of("schedule.warmup_steps"), "found ", config.schedule.warmup_steps,
                              ", more than the ", *config.train.max_steps,
                              " steps of train.max_steps; lower it"));
  }
  if (config.optimizer.update != "after_backward" && config.train.accumulation > 1) {
    problems.push_back(
        concat(place_of("optimizer.update"), "found ", config.optimizer.update, " with train.accumulation ",
               config.train.accumulation,
               ": gradients that are dropped within backward cannot be summed over micro-batches; "
               "set train.accumulation to 1 or optimizer.update to after_backward"));
  }
  if (config.optimizer.update == "in_backward" && config.optimizer.clip_norm > 0) {
    problems.push_back(
        concat(place_of("optimizer.update"), "found in_backward with optimizer.clip_norm ",
               config.optimizer.clip_norm,
               ": the first layers are updated before the norm of all gradients is known; set "
               "optimizer.clip_norm to 0, or optimizer.update to in_backward_twice, which runs "
               "forward and backward once more for the norm"));
  }
  const DistributedConfig& ranks = config.distributed;
  if (ranks.ranks % ranks.ep_size != 0) {
    problems.push_back(concat(place_of("distributed.ep_size"), "found ", ranks.ep_size, ", with ",
                              ranks.ranks, " ranks; it must divide their number"));
  }
  if (ranks.ranks > 1 && config.optimizer.update != "after_backward") {
    problems.push_back(concat(place_of("optimizer.update"), "found ", config.optimizer.update, " with ",
                              ranks.ranks, " ranks; several ranks take after_backward alone"));
  }
  if (ranks.ep_size > 1 && config.optimizer.states == "8bit") {
    problems.push_back(concat(place_of("optimizer.states"), "found 8bit with distributed.ep_size ",
                              ranks.ep_size, "; experts that are spread take fp32 or bf16"));
  }
  if (ranks.ranks > 1 && config.train.device == "cuda") {
    problems.push_back(concat(place_of("distributed.ranks"), "found ", ranks.ranks,
                              " with train.device cuda; several ranks run on the CPU alone"));
  }
  if (!config.data.validation.empty() && config.data.validation_fraction > 0) {
    problems.push_back(place_of("data.validation_fraction") + "data.validation is set too; keep one of them");
  }
  if (config.eval_every > 0 && config.data.validation.empty() && config.data.validation_fraction == 0) {
    problems.push_back(place_of("eval_every") +
                       "there is no validation data; set data.validation or data.validation_fraction");
  }
}

RunConfig run_config_from_json(const Json& json, const std::string& where) {
  PHALANX_CHECK(json.is_object(), ConfigError, where, ": found ", json.kind(),
                "; expected an object of fields");
  ConfigDraft draft;
  draft.merge(json, [&](const std::string&) { return where; });
  return draft.resolve();
}

Json run_config_to_json(const RunConfig& config) {
  Json json = Json::object();
  for (const Field& field : run_config_fields()) {
    const std::size_t dot = field.name.find('.');
    if (dot == std::string::npos) {
      json.set(field.name, field.load(config));
      continue;
    }
    const std::string section = field.name.substr(0, dot);
    Json members = json.find(section) != nullptr ? json.at(section) : Json::object();
    members.set(field.name.substr(dot + 1), field.load(config));
    json.set(section, std::move(members));
  }
  return json;
}

}  // namespace phalanx
