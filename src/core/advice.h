// What to do about an error of a lower layer, which knows what is wrong but not what the person was about to do.
#pragma once
#include "core/error.h"

#include <string>

namespace phalanx {

// Runs `action`; an IoError that leaves it has `advice` at its end.
template <class Action>
auto with_advice(const std::string& advice, const Action& action) {
  try {
    return action();
  } catch (const IoError& error) {
    throw IoError(concat(error.what(), "; ", advice));
  }
}

}  // namespace phalanx
