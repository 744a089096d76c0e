// The nearest valid names for a misspelt one, for error messages.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// At most `limit` of `candidates` close enough to `name` to be what was meant, nearest first. A candidate with dots is also
// compared by its last part, so that "learning_rate" finds "optimizer.learning_rate".
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates,
                                       std::size_t limit = 3);

// "; did you mean 'a' or 'b'?", or nothing when no name is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace phalanx
