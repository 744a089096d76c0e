// The safetensors format: reader and writer. Both by descriptor, without mapping: a file that shrinks is an
// error, not a signal.
//
// A file is an 8-byte little-endian header length, a JSON header, then the bytes of all tensors, row-major,
// little-endian.
#pragma once
#include "core/dtype.h"
#include "core/file.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace phalanx {

// What a file says of one tensor. A shape may be empty (a scalar) and may hold zeros.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the tensor data, filled in by reader and writer
  std::uint64_t end = 0;
  std::uint64_t bytes() const { return end - begin; }
};

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// Bytes of a tensor, or IoError when the product leaves 64 bits, a dimension is negative, or the last byte is
// not full.
std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape);

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"

// Reads the header and checks all of it before anything else is done: see docs/checkpoints.md.
// Reads of tensors may come from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);  // throws IoError that names file and tensor

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  const TensorInfo& at(std::string_view name) const;    // throws IoError

  // `bytes` of a tensor of this file, from byte `offset` of the tensor on.
  void read(const TensorInfo& tensor, std::uint64_t offset, std::size_t bytes, void* destination) const;

 private:
  InputFile file_;
  std::uint64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;
  SafetensorsMetadata metadata_;
};

// Writes the same bytes as the reference implementation does: tensors ordered by dtype, widest first, then by
// name. The file appears under its name, durable, with commit(); without it nothing stays.
class SafetensorsWriter {
 public:
  // Of each tensor name, dtype and shape count. Throws IoError for a name that occurs twice.
  SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                    const SafetensorsMetadata& metadata = {});

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the file
  const TensorInfo& at(std::string_view name) const;

  // Any part of a tensor in any order, from any thread; each byte once.
  void write(const TensorInfo& tensor, std::uint64_t offset, std::size_t bytes, const void* source);

  // Throws Error when not all bytes have been written.
  void commit();

 private:
  AtomicFile file_;
  std::uint64_t data_start_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace phalanx
