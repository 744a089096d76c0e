// The options that set fields of the run configuration, taken from the field table.
#pragma once
#include "command_line.h"
#include "config/run_config.h"

#include <string>
#include <vector>

namespace phalanx {

// --config and --set, then the flags of these fields; of all fields that have one when the list is empty.
std::vector<Option> run_options(const std::vector<std::string>& fields = {});

// Recipe, then --set, then flags, then defaults. Throws ConfigError.
RunConfig run_config_of(const Arguments& arguments);

// Throws ConfigError unless the field has a value.
void require_field(const RunConfig& config, const std::string& field);

}  // namespace phalanx
