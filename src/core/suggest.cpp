#include "core/suggest.h"

#include <algorithm>
#include <utility>

namespace phalanx {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: swaps look two rows back.
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates,
                                       std::size_t limit) {
  const std::string_view last_part = name.substr(name.rfind('.') + 1);
  const std::size_t allowed = std::max<std::size_t>(1, last_part.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& candidate : candidates) {
    std::size_t distance = edit_distance(name, candidate);
    const std::size_t dot = candidate.rfind('.');
    if (dot != std::string::npos) {
      distance = std::min(distance, edit_distance(last_part, std::string_view(candidate).substr(dot + 1)));
    }
    if (distance <= allowed) {
      near.emplace_back(distance, candidate);
    }
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < near.size() && i < limit; ++i) {
    names.push_back(near[i].second);
  }
  return names;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  std::vector<std::string> names = nearest_names(name, candidates);
  if (names.empty()) {
    return "";
  }
  for (std::string& each : names) {
    each = "'" + each + "'";
  }
  return "; did you mean " + join(names, " or ") + "?";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    out.append(i == 0 ? "" : separator).append(parts[i]);
  }
  return out;
}

}  // namespace phalanx
