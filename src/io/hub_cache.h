// Where a model lies: a folder as given, or a hub id ("org/name") in the Hugging Face cache of this machine. Nothing is fetched.
#pragma once
#include <string>
#include <string_view>

namespace phalanx {

// HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::string hub_cache_directory();

// The folder with the model's files. `revision` is a branch, a tag or a commit of the hub, and is only looked at for an id. Throws
// IoError that names the places looked at and how to get the model.
std::string resolve_model(const std::string& dir_or_id, const std::string& revision = "main");

// "name" or "org/name", each part of letters, digits, '-', '_' and '.', not starting with a dot.
bool is_hub_id(std::string_view text);

}  // namespace phalanx
