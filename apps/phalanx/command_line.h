// Commands and their options as data. A subcommand's file declares what it takes and reads the values; how a command line is
// taken apart is in command_line.cpp alone.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace phalanx {

enum class Takes {
  kNothing,  // a switch
  kOne,      // one value; given twice, the last counts
  kMany,     // one or more values, and again
  kEach,     // one value each time it is given
};

struct Option {
  std::string name;   // "--model", or "folder" for a value that stands on its own
  std::string value;  // how the help names the value: "DIR_OR_ID"
  std::string doc;
  Takes takes = Takes::kOne;
  bool required = false;
};

// What a person gave.
class Arguments {
 public:
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  const std::string& get(const std::string& name) const {
    return all(name).back();
  }                                                                    // of an option that is there
  const std::vector<std::string>& all(const std::string& name) const;  // empty when it is not there
  void add(const std::string& name, std::vector<std::string> values);

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

struct Command {
  std::string name;
  std::string summary;
  std::vector<Option> options;
  std::string examples;          // shown below the help
  int (*run)(const Arguments&);  // returns a PhalanxExit
  bool python = false;           // the options are those of the Python step, which gets the line as it is
};

// Runs the command that the line names. Help and version are printed; an unknown command, option or a missing value is a
// ConfigError that names the nearest valid one.
int run_command_line(const std::vector<Command>& commands, int argc, char** argv);

}  // namespace phalanx
