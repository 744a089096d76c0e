// The elements of one checkpoint tensor, in the order of the file, inside the parameter that holds them.
#pragma once
#include "models/spec/checkpoint_io.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace phalanx {

// A run of elements that one thread moves at a time: whole rows where the placement transposes.
struct Piece {
  std::size_t tensor;  // index into the caller's list
  std::int64_t first;  // element in the file's order
  std::int64_t count;
};

class PlacedElements {
 public:
  PlacedElements(const Placement& placement, const ParameterBuffer& buffer)
      : placement_(&placement), buffer_(&buffer) {}

  const Placement& placement() const { return *placement_; }
  Dtype dtype() const { return buffer_->dtype; }  // in memory
  std::int64_t count() const;
  // Elements [begin, end) of the file's order whose places memory holds.
  std::pair<std::int64_t, std::int64_t> held() const;
  std::size_t element_bytes() const { return static_cast<std::size_t>(dtype_bits(buffer_->dtype)) / 8; }

  // Appends pieces of about a MiB that cover the tensor.
  void split(std::size_t tensor, std::vector<Piece>* pieces) const;

  // Where elements from `first` on lie in memory, or nullptr when they do not lie in the order of the file.
  std::byte* contiguous(std::int64_t first) const;
  // Elements in the order of the file, in memory's dtype, into or out of their places.
  void scatter(std::int64_t first, std::int64_t count, const std::byte* from) const;
  void gather(std::int64_t first, std::int64_t count, std::byte* to) const;

 private:
  std::byte* place(std::int64_t element) const;

  const Placement* placement_;
  const ParameterBuffer* buffer_;
};

// Finds the buffer of a parameter by name, and holds a weight map and the buffers against each other: throws Error when a parameter has
// no buffer, a buffer no parameter, or a form does not fill its parameter exactly.
class ParameterBuffers {
 public:
  ParameterBuffers(const WeightMap& map, const std::vector<ParameterBuffer>& parameters);
  const ParameterBuffer& at(const std::string& name) const;

 private:
  std::unordered_map<std::string_view, const ParameterBuffer*> by_name_;
};

// Scratch memory that is not cleared first.
inline std::unique_ptr<std::byte[]> make_staging(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace phalanx
