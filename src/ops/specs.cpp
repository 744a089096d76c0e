#include "ops/specs.h"

#include "core/error.h"

namespace phalanx {

const char* experts_implementation_name(ExpertsImplementation implementation) {
  switch (implementation) {
    case ExpertsImplementation::kAuto:
      return "auto";
    case ExpertsImplementation::kEager:
      return "eager";
    case ExpertsImplementation::kBatchedMm:
      return "batched_mm";
    case ExpertsImplementation::kGroupedMm:
      return "grouped_mm";
    case ExpertsImplementation::kPhalanx:
      return "phalanx";
  }
  return "?";
}

ExpertsImplementation experts_implementation_from_name(const std::string& name) {
  using enum ExpertsImplementation;
  for (const auto implementation : {kAuto, kEager, kBatchedMm, kGroupedMm, kPhalanx}) {
    if (name == experts_implementation_name(implementation)) {
      return implementation;
    }
  }
  fail<ConfigError>("experts_implementation is \"", name,
                    "\"; it must be auto, eager, batched_mm, grouped_mm or phalanx");
}

}  // namespace phalanx
