// A recipe in YAML, read into a ConfigDraft with the line of every field.
#pragma once
#include "config/config_draft.h"

#include <string>

namespace phalanx {

// Refused with file, line and column: broken YAML, duplicate keys, several documents, keys that are no text, tags other than
// YAML's own, merge keys, aliases that unfold to more than a recipe can hold. Throws ConfigError, IoError.
void read_recipe(const std::string& path, ConfigDraft& draft);

}  // namespace phalanx
