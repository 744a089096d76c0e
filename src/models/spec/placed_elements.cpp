#include "models/spec/placed_elements.h"

#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace phalanx {
namespace {

constexpr std::int64_t kPieceBytes = 1 << 20;

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_form(const WeightRule& rule, const WeightForm& form, const ParameterBuffer& buffer) {
  const std::int64_t wanted = product(buffer.shape);
  std::int64_t filled = 0;
  for (const Placement& placement : form.placements) {
    const std::int64_t count = product(placement.source_shape);
    PHALANX_CHECK(placement.offset >= 0 && count >= 0 && placement.offset + count <= wanted, Error,
                  "weight map of ", rule.parameter, ": ", placement.source, " reaches outside of its ",
                  wanted, " elements");
    PHALANX_CHECK(!placement.transpose || placement.source_shape.size() >= 2, Error, "weight map of ",
                  rule.parameter, ": ", placement.source, " has no two dimensions to transpose");
    filled += count;
  }
  PHALANX_CHECK(filled == wanted, Error, "weight map of ", rule.parameter, ": its tensors have ", filled,
                " elements, the parameter ", wanted);
}

}  // namespace

std::int64_t PlacedElements::count() const { return product(placement_->source_shape); }

std::pair<std::int64_t, std::int64_t> PlacedElements::held() const {
  if (!buffer_->rows.has_value()) {
    return {0, count()};
  }
  const std::int64_t row = product(buffer_->shape) / buffer_->shape.at(0);
  const std::int64_t begin =
      std::clamp(buffer_->first_row * row - placement_->offset, std::int64_t{0}, count());
  const std::int64_t end =
      std::clamp((buffer_->first_row + *buffer_->rows) * row - placement_->offset, begin, count());
  PHALANX_CHECK(
      !placement_->transpose || begin == end || end - begin == count() || placement_->source_shape.size() > 2,
      Error, "a part of ", buffer_->name, " cannot be read from ", placement_->source,
      ", which is transposed");
  return {begin, end};
}

void PlacedElements::split(std::size_t tensor, std::vector<Piece>* pieces) const {
  const std::int64_t row = placement_->transpose ? placement_->source_shape.back() : 1;
  if (row == 0) {
    return;
  }
  const std::int64_t rows =
      std::max<std::int64_t>(1, kPieceBytes / (row * static_cast<std::int64_t>(element_bytes())));
  const auto [begin, end] = held();
  for (std::int64_t first = begin; first < end; first += rows * row) {
    pieces->push_back({tensor, first, std::min(rows * row, end - first)});
  }
}

// The file has [.., R, C], memory has [.., C, R] when the placement transposes.
std::byte* PlacedElements::place(std::int64_t element) const {
  if (placement_->transpose) {
    const std::int64_t columns = placement_->source_shape.back();
    const std::int64_t rows = placement_->source_shape[placement_->source_shape.size() - 2];
    const std::int64_t in_matrix = element % (rows * columns);
    element += in_matrix % columns * rows + in_matrix / columns - in_matrix;
  }
  const std::int64_t before =
      buffer_->first_row == 0 ? 0 : buffer_->first_row * (product(buffer_->shape) / buffer_->shape[0]);
  return static_cast<std::byte*>(buffer_->data) +
         static_cast<std::size_t>(placement_->offset + element - before) * element_bytes();
}

std::byte* PlacedElements::contiguous(std::int64_t first) const {
  return placement_->transpose ? nullptr : place(first);
}

void PlacedElements::scatter(std::int64_t first, std::int64_t count, const std::byte* from) const {
  const std::size_t bytes = element_bytes();
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(place(first + i), from + static_cast<std::size_t>(i) * bytes, bytes);
  }
}

void PlacedElements::gather(std::int64_t first, std::int64_t count, std::byte* to) const {
  const std::size_t bytes = element_bytes();
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + static_cast<std::size_t>(i) * bytes, place(first + i), bytes);
  }
}

ParameterBuffers::ParameterBuffers(const WeightMap& map, const std::vector<ParameterBuffer>& parameters) {
  for (const ParameterBuffer& parameter : parameters) {
    PHALANX_CHECK(by_name_.emplace(parameter.name, &parameter).second, Error, "parameter ", parameter.name,
                  " is given twice");
    PHALANX_CHECK(dtype_bits(parameter.dtype) % 8 == 0, Error, "parameter ", parameter.name,
                  " cannot be held as ", dtype_name(parameter.dtype));
  }
  for (const WeightRule& rule : map.rules) {
    for (const WeightForm& form : rule.forms) {
      check_form(rule, form, at(rule.parameter));
    }
  }
  PHALANX_CHECK(map.rules.size() == parameters.size(), Error, "the weight map has ", map.rules.size(),
                " parameters, given are ", parameters.size());
}

const ParameterBuffer& ParameterBuffers::at(const std::string& name) const {
  const auto found = by_name_.find(name);
  PHALANX_CHECK(found != by_name_.end(), Error, "parameter ", name, " of the weight map is not given");
  return *found->second;
}

}  // namespace phalanx
