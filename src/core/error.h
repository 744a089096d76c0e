// The error family. A message says what is wrong, where (file, tensor, line, rank) and what to do about it.
//
// The library throws; bind/ and apps/ translate. Nothing below them prints or exits.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace phalanx {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A recipe, a flag, a model's config.json: something a person wrote is not acceptable.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A file is missing, unreadable, damaged, or holds something else than expected.
class IoError : public Error {
 public:
  using Error::Error;
};

class CudaError : public Error {
 public:
  using Error::Error;
};

class CommError : public Error {
 public:
  using Error::Error;
};

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
