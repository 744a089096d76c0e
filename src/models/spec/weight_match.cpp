#include "models/spec/weight_match.h"

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

namespace phalanx {
namespace {

// Complaints of one kind.
class Complaints {
 public:
  explicit Complaints(const char* kind) : kind_(kind) {}

  template <class... Pieces>
  void add(const Pieces&... pieces) {
    if (++count_ <= kListed) {
      lines_ += concat("\n  ", kind_, ": ", pieces...);
    }
  }
  bool empty() const { return count_ == 0; }
  std::string count_text() const { return concat(count_, ' ', kind_); }
  std::string lines() const {
    return count_ <= kListed ? lines_ : concat(lines_, "\n  ... and ", count_ - kListed, " more ", kind_);
  }

 private:
  static constexpr std::size_t kListed = 20;
  const char* kind_;
  std::size_t count_ = 0;
  std::string lines_;
};

// The paths that lead to the names a map knows: of "model.norm.weight" these are "model", "model.norm" and the name itself.
class KnownPaths {
 public:
  explicit KnownPaths(const WeightMap& map) {
    for (const WeightRule& rule : map.rules) {
      for (const WeightForm& form : rule.forms) {
        for (const Placement& placement : form.placements) {
          add(placement.source);
        }
      }
    }
    for (const std::string& name : map.ignored) {
      add(name);
    }
  }

  // The path at which `name` leaves the known ones when it belongs to another part, else nothing: see match_weights.
  std::string_view other_part(std::string_view name) const {
    bool in_layer = false;
    for (std::size_t begin = 0;;) {
      const std::size_t end = name.find('.', begin);
      if (end == std::string_view::npos) {
        return {};
      }
      if (!paths_.contains(name.substr(0, end))) {
        return in_layer ? std::string_view() : name.substr(0, end);
      }
      const std::string_view component = name.substr(begin, end - begin);
      in_layer = in_layer || std::all_of(component.begin(), component.end(),
                                         [](unsigned char c) { return std::isdigit(c); });
      begin = end + 1;
    }
  }

 private:
  void add(std::string_view name) {
    for (std::size_t end = name.size(); end != std::string_view::npos; end = name.rfind('.', end - 1)) {
      if (!paths_.insert(name.substr(0, end)).second || end == 0) {
        return;  // with it all shorter ones are there
      }
    }
  }

  std::unordered_set<std::string_view> paths_;  // into the map
};

class Matcher {
 public:
  Matcher(const WeightMap& map, const HfCheckpoint& checkpoint) : map_(map), checkpoint_(checkpoint) {}

  WeightMatch run() {
    for (const WeightRule& rule : map_.rules) {
      take(rule, choose_form(rule));
    }
    sort_out_the_rest();
    throw_complaints();
    return std::move(match_);
  }

 private:
  std::size_t count_present(const WeightForm& form) const {
    return static_cast<std::size_t>(
        std::count_if(form.placements.begin(), form.placements.end(),
                      [&](const Placement& p) { return checkpoint_.find(p.source) != nullptr; }));
  }

  // The first complete form; else the one that the checkpoint comes nearest to, for the complaint.
  const WeightForm& choose_form(const WeightRule& rule) const {
    PHALANX_CHECK(!rule.forms.empty(), Error, "weight map of ", rule.parameter, ": no form is given");
    const WeightForm* nearest = &rule.forms.front();
    std::size_t most = 0;
    for (const WeightForm& form : rule.forms) {
      const std::size_t present = count_present(form);
      if (present == form.placements.size()) {
        return form;
      }
      if (present > most) {
        most = present;
        nearest = &form;
      }
    }
    return *nearest;
  }

  void take(const WeightRule& rule, const WeightForm& form) {
    match_.forms.push_back(&form);
    for (const Placement& placement : form.placements) {
      const StoredTensor* stored = checkpoint_.find(placement.source);
      if (stored == nullptr) {
        missing_.add(in_quotes(placement.source), " of parameter ", in_quotes(rule.parameter));
        continue;
      }
      taken_.insert(placement.source);
      if (stored->info->shape != placement.source_shape) {
        misshaped_.add(in_quotes(placement.source), " in ", stored->file->path(), " has shape ",
                       shape_text(stored->info->shape), ", the model needs ",
                       shape_text(placement.source_shape));
      }
      match_.tensors.push_back({*stored, &placement});
    }
  }

  void sort_out_the_rest() {
    taken_.insert(map_.ignored.begin(), map_.ignored.end());
    const KnownPaths known(map_);
    std::set<std::string> parts;
    for (const StoredTensor& stored : checkpoint_.tensors()) {
      const std::string& name = stored.info->name;
      if (taken_.contains(name)) {
        continue;
      }
      const std::string_view part = known.other_part(name);
      if (part.empty()) {
        surplus_.add(in_quotes(name), " in ", stored.file->path(), ", of shape ",
                     shape_text(stored.info->shape));
      } else {
        match_.carried.push_back(stored);
        parts.insert(printable(part));
      }
    }
    log_carried(parts);
  }

  void log_carried(const std::set<std::string>& parts) const {
    if (parts.empty()) {
      return;
    }
    std::string names;
    for (const std::string& part : parts) {
      names += (names.empty() ? "" : ", ") + part;
    }
    log_info(checkpoint_.folder(), ": ", match_.carried.size(),
             " tensors belong to parts that are not trained (", names, "); they are kept as they are");
  }

  void throw_complaints() const {
    if (missing_.empty() && misshaped_.empty() && surplus_.empty()) {
      return;
    }
    fail<IoError>(checkpoint_.folder(),
                  ": the weights do not fit the model that config.json describes: ", missing_.count_text(),
                  ", ", misshaped_.count_text(), ", ", surplus_.count_text(), missing_.lines(),
                  misshaped_.lines(), surplus_.lines(),
                  "\nuse the config.json that was published with these weights, or fetch the weights again");
  }

  const WeightMap& map_;
  const HfCheckpoint& checkpoint_;
  WeightMatch match_;
  std::unordered_set<std::string_view> taken_;
  Complaints missing_{"missing"};
  Complaints misshaped_{"misshaped"};
  Complaints surplus_{"surplus"};
};

}  // namespace

WeightMatch match_weights(const WeightMap& map, const HfCheckpoint& checkpoint) {
  return Matcher(map, checkpoint).run();
}

}  // namespace phalanx
