#include "core/convert.h"
#include "core/error.h"
#include "core/populate.h"
#include "core/text.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/placed_elements.h"
#include "models/spec/weight_match.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace phalanx {
namespace {

struct LoadedTensor {
  StoredTensor stored;
  PlacedElements elements;
};

// In the order of the bytes on disk, so that the reads of all threads together move through each file once.
std::vector<LoadedTensor> list_tensors(const WeightMatch& match, const ParameterBuffers& buffers) {
  std::vector<LoadedTensor> tensors;
  for (const auto& [stored, placement] : match.tensors) {
    const ParameterBuffer& buffer = buffers.at(placement->parameter);
    PHALANX_CHECK(can_convert(stored.info->dtype, buffer.dtype), IoError, stored.file->path(), ": tensor ",
                  in_quotes(stored.info->name), " has dtype ", dtype_name(stored.info->dtype),
                  ", which cannot be read as ", dtype_name(buffer.dtype),
                  "; use a checkpoint in BF16, F16 or F32");
    tensors.push_back({stored, PlacedElements(*placement, buffer)});
  }
  std::sort(tensors.begin(), tensors.end(), [](const LoadedTensor& a, const LoadedTensor& b) {
    return std::tie(a.stored.file->path(), a.stored.info->begin) <
           std::tie(b.stored.file->path(), b.stored.info->begin);
  });
  return tensors;
}

void load_piece(const LoadedTensor& tensor, const Piece& piece) {
  const auto& [stored, elements] = tensor;
  const Dtype from = stored.info->dtype;
  const Dtype to = elements.dtype();
  const auto count = static_cast<std::size_t>(piece.count);
  const std::size_t stored_element = static_cast<std::size_t>(dtype_bits(from)) / 8;
  const std::uint64_t offset = static_cast<std::uint64_t>(piece.first) * stored_element;
  std::byte* place = elements.contiguous(piece.first);
  if (place != nullptr) {
    populate_pages(place, count * elements.element_bytes());
  }
  if (place != nullptr && from == to) {
    stored.file->read(*stored.info, offset, count * stored_element, place);
    return;
  }
  const auto staging = make_staging(count * stored_element);
  stored.file->read(*stored.info, offset, count * stored_element, staging.get());
  if (place != nullptr) {
    convert_elements(staging.get(), from, place, to, count);
    return;
  }
  const auto converted = make_staging(count * elements.element_bytes());
  convert_elements(staging.get(), from, converted.get(), to, count);
  elements.scatter(piece.first, piece.count, converted.get());
}

}  // namespace

void load_parameters(const WeightMap& map, const HfCheckpoint& checkpoint,
                     const std::vector<ParameterBuffer>& parameters, ThreadPool& threads) {
  const ParameterBuffers buffers(map, parameters);
  const std::vector<LoadedTensor> tensors = list_tensors(match_weights(map, checkpoint), buffers);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].elements.split(i, &pieces);
  }
  threads.parallel_for(pieces.size(),
                       [&](std::size_t i) { load_piece(tensors[pieces[i].tensor], pieces[i]); });
}

}  // namespace phalanx
