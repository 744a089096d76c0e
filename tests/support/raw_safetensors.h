// Safetensors files of given header text, right or wrong, and the errors they cause.
#pragma once
#include "core/error.h"
#include "core/file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx {

inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

inline void write_raw_safetensors(const std::string& path, const std::string& header,
                                  const std::string& data) {
  write_file_atomic(path, raw_safetensors(header, data));
}

// One tensor's member of a header; shape and offsets as JSON text.
inline std::string raw_entry(const std::string& name, const std::string& dtype, const std::string& shape,
                             const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

// A file with one tensor of `bytes` bytes 'x' for each name.
inline void write_byte_tensors(const std::string& path, const std::vector<std::string>& names,
                               std::size_t bytes = 4) {
  std::string header = "{";
  std::size_t at = 0;
  for (const std::string& name : names) {
    header +=
        (at > 0 ? "," : "") + raw_entry(name, "U8", "[" + std::to_string(bytes) + "]",
                                        "[" + std::to_string(at) + "," + std::to_string(at + bytes) + "]");
    at += bytes;
  }
  write_raw_safetensors(path, header + "}", std::string(at, 'x'));
}

template <class Body>
std::string io_error(Body body) {
  try {
    body();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace phalanx
