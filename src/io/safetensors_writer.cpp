#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "io/safetensors.h"

#include <algorithm>

namespace phalanx {
namespace {

constexpr std::size_t kAlignment = 8;

// Places the tensors one after another in the reference's order, which keeps every tensor aligned to its
// element.
void lay_out(std::vector<TensorInfo>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::uint64_t at = 0;
  for (TensorInfo& tensor : *tensors) {
    tensor.begin = at;
    PHALANX_CHECK(!__builtin_add_overflow(at, tensor_bytes(tensor.dtype, tensor.shape), &at), IoError,
                  "the tensors need more than 2^64 bytes");
    tensor.end = at;
  }
}

std::string header_text(const std::vector<TensorInfo>& tensors, const SafetensorsMetadata& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object entries;
    for (const auto& [key, value] : metadata) {
      entries.emplace_back(key, value);
    }
    header.emplace_back("__metadata__", std::move(entries));
  }
  for (const TensorInfo& tensor : tensors) {
    Json entry;
    entry.set("dtype", dtype_name(tensor.dtype));
    entry.set("shape", Json::Array(tensor.shape.begin(), tensor.shape.end()));
    entry.set("data_offsets", Json::Array{tensor.begin, tensor.end});
    header.emplace_back(tensor.name, std::move(entry));
  }
  std::string text = Json(std::move(header)).dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(std::move(path)), tensors_(std::move(tensors)) {
  lay_out(&tensors_);
  for (const TensorInfo& tensor : tensors_) {
    PHALANX_CHECK(tensor.name != "__metadata__" && tensor.name.find('\0') == std::string::npos, IoError,
                  file_.path(), ": no tensor can have the name ", in_quotes(tensor.name));
    PHALANX_CHECK(by_name_.emplace(tensor.name, &tensor).second, IoError, file_.path(), ": tensor ",
                  in_quotes(tensor.name), " is to be written twice");
  }
  const std::string header = header_text(tensors_, metadata);
  const std::uint64_t length = header.size();
  data_start_ = sizeof(length) + length;
  data_bytes_ = tensors_.empty() ? 0 : tensors_.back().end;
  file_.reserve(data_start_ + data_bytes_);
  file_.pwrite_exact(&length, sizeof(length), 0);
  file_.pwrite_exact(header.data(), header.size(), sizeof(length));
}

const TensorInfo& SafetensorsWriter::at(std::string_view name) const {
  const auto found = by_name_.find(name);
  PHALANX_CHECK(found != by_name_.end(), Error, file_.path(), ": tensor ", in_quotes(name),
                " was not declared");
  return *found->second;
}

void SafetensorsWriter::write(const TensorInfo& tensor, std::uint64_t offset, std::size_t bytes,
                              const void* source) {
  PHALANX_CHECK(offset <= tensor.bytes() && bytes <= tensor.bytes() - offset, Error, file_.path(), ": ",
                bytes, " bytes at byte ", offset, " of tensor ", in_quotes(tensor.name), " do not fit its ",
                tensor.bytes());
  file_.pwrite_exact(source, bytes, data_start_ + tensor.begin + offset);
  written_ += bytes;
}

void SafetensorsWriter::commit() {
  PHALANX_CHECK(written_ == data_bytes_, Error, file_.path(), ": ", written_.load(), " of ", data_bytes_,
                " bytes of tensors were written; nothing is kept");
  file_.commit();
}

}  // namespace phalanx
