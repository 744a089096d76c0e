// Throwing the errors of phalanx/error.h. The library throws; bind/ and apps/ translate. Nothing below them prints or exits.
#pragma once
#include "phalanx/error.h"

#include <sstream>
#include <string>

namespace phalanx {

// Joins pieces as operator<< prints them.
template <class... Pieces>
std::string concat(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

template <class ErrorType = Error, class... Pieces>
[[noreturn]] void fail(const Pieces&... pieces) {
  throw ErrorType(concat(pieces...));
}

}  // namespace phalanx

// PHALANX_CHECK(condition, ErrorType, pieces...) throws ErrorType with the joined pieces unless condition
// holds.
#define PHALANX_CHECK(condition, ErrorType, ...) \
  do {                                           \
    if (!(condition)) {                          \
      ::phalanx::fail<ErrorType>(__VA_ARGS__);   \
    }                                            \
  } while (false)
