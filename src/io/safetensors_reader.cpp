#include "core/advice.h"
#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace phalanx {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int kHeaderDepth = 4;  // header, tensor, shape: three are in use
constexpr const char* kReload =
    "; the file is damaged or was not written as safetensors: fetch or write it again";

// Every refusal of one file begins with its path.
class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file) : file_(file) {}

  // The header's text; `data_start` is where the tensors' bytes begin.
  std::string read(std::uint64_t* data_start) const {
    if (file_.size() < kLengthBytes) {
      refuse("is ", file_.size(), " bytes long, a safetensors file begins with a header length of 8 bytes",
             kReload);
    }
    std::uint64_t length = 0;
    file_.pread_exact(&length, kLengthBytes, 0);
    if (length > kMaxHeaderBytes) {
      refuse("header length ", length, " is beyond the limit of ", kMaxHeaderBytes, pickle_hint(), kReload);
    }
    if (length > file_.size() - kLengthBytes) {
      refuse("header length ", length, " reaches past the end of the file, which is ", file_.size(),
             " bytes long", kReload);
    }
    std::string text(length, '\0');
    file_.pread_exact(text.data(), text.size(), kLengthBytes);
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || text[first] != '{') {
      refuse("the header does not begin with '{'", kReload);
    }
    *data_start = kLengthBytes + length;
    return text;
  }

  void parse(const std::string& text, std::vector<TensorInfo>* tensors, SafetensorsMetadata* metadata) const {
    const Json header = with_advice("the file is damaged: fetch or write it again", [&] {
      return Json::parse(text, file_.path() + " (header)", kHeaderDepth);
    });
    for (const auto& [name, entry] : header.as_object()) {
      if (name == "__metadata__") {
        *metadata = parse_metadata(entry);
      } else {
        tensors->push_back(parse_tensor(name, entry));
      }
    }
  }

  // Sorted by their bytes, tensors must cover the rest of the file without gap or overlap.
  void check_layout(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) const {
    std::uint64_t covered = 0;
    const TensorInfo* before = nullptr;
    for (const TensorInfo& tensor : tensors) {
      if (tensor.begin != covered) {
        const std::string neighbour = before
                                          ? concat("tensor ", in_quotes(before->name), " at ", span(*before))
                                          : std::string("the header");
        refuse_tensor(tensor.name, "at ", span(tensor),
                      tensor.begin < covered ? " overlaps " : " leaves a gap after ", neighbour, kReload);
      }
      covered = tensor.end;
      before = &tensor;
    }
    if (covered > data_bytes) {
      refuse_tensor(before->name, "at ", span(*before), " reaches past the end of the file, which holds ",
                    data_bytes, " bytes of tensors; it was cut off: fetch or write it again");
    }
    if (covered < data_bytes) {
      refuse(data_bytes - covered, " bytes follow the last tensor, which ends at byte ", covered,
             " of the tensors' bytes", kReload);
    }
  }

 private:
  template <class... Pieces>
  [[noreturn]] void refuse(const Pieces&... pieces) const {
    fail<IoError>(file_.path(), ": ", pieces...);
  }

  template <class... Pieces>
  [[noreturn]] void refuse_tensor(const std::string& name, const Pieces&... pieces) const {
    refuse("tensor ", in_quotes(name), ' ', pieces...);
  }

  static std::string span(const TensorInfo& tensor) {
    return concat("bytes [", tensor.begin, ", ", tensor.end, ")");
  }

  // A zip archive (torch.save) or a bare pickle under a safetensors name.
  std::string pickle_hint() const {
    std::array<unsigned char, 2> magic{};
    file_.pread_exact(magic.data(), magic.size(), 0);
    const bool pickle = (magic[0] == 'P' && magic[1] == 'K') || magic[0] == 0x80;
    return pickle ? " (the file looks like one of torch.save, which is never opened here)" : "";
  }

  SafetensorsMetadata parse_metadata(const Json& entry) const {
    if (!entry.is_object()) {
      refuse("__metadata__ is of kind ", entry.kind(), ", expected an object of strings", kReload);
    }
    SafetensorsMetadata out;
    for (const auto& [key, value] : entry.as_object()) {
      if (!value.is_string()) {
        refuse("__metadata__ entry ", in_quotes(key), " is of kind ", value.kind(), ", expected string",
               kReload);
      }
      out.emplace_back(key, value.as_string());
    }
    return out;
  }

  const Json& field(const std::string& name, const Json& entry, const char* key) const {
    const Json* value = entry.find(key);
    if (value == nullptr) {
      refuse_tensor(name, "has no field '", key, "'", kReload);
    }
    return *value;
  }

  std::vector<std::int64_t> sizes(const std::string& name, const Json& entry, const char* key) const {
    const Json& list = field(name, entry, key);
    if (!list.is_array()) {
      refuse_tensor(name, "has '", key, "' of kind ", list.kind(), ", expected an array of integers",
                    kReload);
    }
    std::vector<std::int64_t> out;
    for (const Json& value : list.as_array()) {
      if (!value.is_integer() || value.as_integer() < 0) {
        refuse_tensor(name, "has ", printable(value.dump(), 60), " in '", key,
                      "', expected integers that are not negative", kReload);
      }
      out.push_back(value.as_integer());
    }
    return out;
  }

  TensorInfo parse_tensor(const std::string& name, const Json& entry) const {
    if (!entry.is_object()) {
      refuse_tensor(name, "is described by a value of kind ", entry.kind(), ", expected an object", kReload);
    }
    const Json& dtype_field = field(name, entry, "dtype");
    const std::optional<Dtype> dtype =
        dtype_field.is_string() ? dtype_from_name(dtype_field.as_string()) : std::nullopt;
    if (!dtype) {
      refuse_tensor(name, "has the unknown dtype ", printable(dtype_field.dump(), 60), "; known are ",
                    known_dtypes());
    }
    TensorInfo tensor{name, *dtype, sizes(name, entry, "shape"), 0, 0};
    const std::vector<std::int64_t> offsets = sizes(name, entry, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      refuse_tensor(name, "has 'data_offsets' ", shape_text(offsets),
                    ", expected a begin and an end not before it", kReload);
    }
    tensor.begin = static_cast<std::uint64_t>(offsets[0]);
    tensor.end = static_cast<std::uint64_t>(offsets[1]);
    check_size(tensor);
    return tensor;
  }

  void check_size(const TensorInfo& tensor) const {
    std::uint64_t bytes = 0;
    try {
      bytes = tensor_bytes(tensor.dtype, tensor.shape);
    } catch (const IoError& error) {
      refuse_tensor(tensor.name, error.what(), kReload);
    }
    if (bytes != tensor.bytes()) {
      refuse_tensor(tensor.name, "of dtype ", dtype_name(tensor.dtype), " and shape ",
                    shape_text(tensor.shape), " needs ", bytes, " bytes, its 'data_offsets' span ",
                    tensor.bytes(), kReload);
    }
  }

  static std::string known_dtypes() {
    std::string out;
    for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
      out += concat(i == 0 ? "" : ", ", dtype_name(static_cast<Dtype>(i)));
    }
    return out;
  }

  const InputFile& file_;
};

}  // namespace

std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    PHALANX_CHECK(size >= 0, IoError, "has a negative dimension in shape ", shape_text(shape));
    empty = empty || size == 0;
    // The product counts even when another dimension is zero: a shape beyond 64 bits is nonsense in any
    // order.
    if (size != 0 && __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) {
      fail<IoError>("has shape ", shape_text(shape), ", whose size in bits does not fit 64 bits");
    }
  }
  bits = empty ? 0 : bits;
  PHALANX_CHECK(bits % 8 == 0, IoError, "of dtype ", dtype_name(dtype), " and shape ", shape_text(shape),
                " does not end on a full byte");
  return bits / 8;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const std::int64_t size : shape) {
    out += concat(out.size() > 1 ? ", " : "", size);
  }
  return out + "]";
}

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) {
  const HeaderReader reader(file_);
  reader.parse(reader.read(&data_start_), &tensors_, &metadata_);
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  reader.check_layout(tensors_, file_.size() - data_start_);
  for (const TensorInfo& tensor : tensors_) {
    by_name_.emplace(tensor.name, &tensor);
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  PHALANX_CHECK(tensor != nullptr, IoError, path(), ": has no tensor ", in_quotes(name), " (it holds ",
                tensors_.size(), ")");
  return *tensor;
}

void SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t offset, std::size_t bytes,
                           void* destination) const {
  PHALANX_CHECK(offset <= tensor.bytes() && bytes <= tensor.bytes() - offset, Error, path(), ": ", bytes,
                " bytes from byte ", offset, " of tensor ", in_quotes(tensor.name), " asked for, which has ",
                tensor.bytes());
  try {
    file_.pread_exact(destination, bytes, data_start_ + tensor.begin + offset);
  } catch (const IoError& error) {
    fail<IoError>(error.what(), " (tensor ", in_quotes(tensor.name), ")");
  }
}

}  // namespace phalanx
