// The errors that the library throws. A message says what is wrong, where (file, tensor, line, rank) and what to do about it.
#pragma once
#include <stdexcept>

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

}  // namespace phalanx
