#include "command_line.h"

#include "bind/engine_c_api.h"
#include "core/error.h"
#include "core/suggest.h"
#include "phalanx/version.h"
#include "python_step.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string_view>

namespace phalanx {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 failed while running; 2 the command line, recipe, model or data is not "
    "acceptable;\n"
    "75 stopped by a signal after saving (start again to go on).";

// One command as CLI11 sees it, and where its values land.
struct Parsed {
  const Command* command;
  CLI::App* app;
  std::vector<std::vector<std::string>> values;  // by option
};

void declare(Parsed& parsed) {
  parsed.values.resize(parsed.command->options.size());
  for (std::size_t i = 0; i < parsed.values.size(); ++i) {
    const Option& option = parsed.command->options[i];
    if (option.takes == Takes::kNothing) {
      parsed.app->add_flag(option.name, option.doc);
      continue;
    }
    CLI::Option* added =
        parsed.app->add_option(option.name, parsed.values[i], option.doc)->type_name(option.value);
    added->multi_option_policy(option.takes == Takes::kOne ? CLI::MultiOptionPolicy::TakeLast
                                                           : CLI::MultiOptionPolicy::TakeAll);
    if (option.takes == Takes::kMany) {
      added->expected(1, CLI::detail::expected_max_vector_size);
    } else {
      added->expected(1);
      added->allow_extra_args(false);
    }
  }
}

Parsed declare(const Command& command, CLI::App& program) {
  Parsed parsed{&command, program.add_subcommand(command.name, command.summary), {}};
  parsed.app->allow_extras();
  parsed.app->footer("Examples:\n" + command.examples);
  declare(parsed);
  return parsed;
}

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : command.options) {
    if (option.name.starts_with("--")) {
      names.push_back(option.name);
    }
  }
  return names;
}

[[noreturn]] void fail_with_unknown(const Command& command, const std::string& word) {
  const std::string cure = "; `phalanx " + command.name + " --help` lists the options";
  if (!word.starts_with('-')) {
    fail<ConfigError>("phalanx ", command.name, ": found '", word, "' where an option was expected", cure);
  }
  const std::string name = word.substr(0, word.find('='));
  fail<ConfigError>("phalanx ", command.name, ": unknown option '", name, "'",
                    did_you_mean(name, option_names(command)), cure);
}

Arguments arguments_of(const Parsed& parsed) {
  Arguments arguments;
  for (std::size_t i = 0; i < parsed.values.size(); ++i) {
    const Option& option = parsed.command->options[i];
    const bool given = parsed.app->count(option.name) > 0;
    PHALANX_CHECK(given || !option.required, ConfigError, "phalanx ", parsed.command->name, ": ", option.name,
                  " is missing: ", option.doc, "; write `phalanx ", parsed.command->name, " ",
                  option.name.starts_with("--") ? option.name + " " : "", option.value, "`");
    if (given) {
      arguments.add(option.name, parsed.values[i]);
    }
  }
  return arguments;
}

void check_first_word(const std::vector<Command>& commands, std::string_view word) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    names.push_back(command.name);
  }
  const bool known = word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end();
  PHALANX_CHECK(known, ConfigError, "phalanx: unknown command '", word, "'", did_you_mean(word, names),
                "; the commands are ", join(names, ", "));
}

}  // namespace

const std::vector<std::string>& Arguments::all(const std::string& name) const {
  static const std::vector<std::string> none;
  const auto found = values_.find(name);
  return found == values_.end() ? none : found->second;
}

void Arguments::add(const std::string& name, std::vector<std::string> values) {
  values_[name] = std::move(values);
}

int run_command_line(const std::vector<Command>& commands, int argc, char** argv) {
  CLI::App program("Fine-tunes Mixture-of-Experts language models.", "phalanx");
  program.set_version_flag("--version", std::string("phalanx ") + version());
  program.footer("`phalanx COMMAND --help` shows options and examples.\n" + std::string(kExitCodes));
  program.allow_extras();
  std::vector<Parsed> parsed;
  for (const Command& command : commands) {
    parsed.push_back(declare(command, program));
  }
  if (argc < 2) {
    std::cerr << program.help();
    return kPhalanxBadInput;
  }
  check_first_word(commands, argv[1]);
  for (const Command& command : commands) {
    if (command.python && command.name == argv[1]) {
      exec_python_step(std::vector<std::string>(argv + 1, argv + argc));
    }
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return program.exit(request);
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("phalanx: ", error.what(), "; `phalanx ", argv[1],
                      " --help` shows how the options are written");
  }
  for (const Parsed& each : parsed) {
    if (each.app->parsed()) {
      if (const std::vector<std::string> unknown = each.app->remaining(); !unknown.empty()) {
        fail_with_unknown(*each.command, unknown.front());
      }
      return each.command->run(arguments_of(each));
    }
  }
  const std::string word = argv[1];
  fail<ConfigError>("phalanx: unknown option '", word, "'", did_you_mean(word, {"--help", "--version"}),
                    "; options of a command stand behind its name");
}

}  // namespace phalanx
