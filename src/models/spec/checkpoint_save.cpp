#include "core/convert.h"
#include "core/error.h"
#include "core/text.h"
#include "models/spec/checkpoint_io.h"
#include "models/spec/placed_elements.h"
#include "models/spec/weight_match.h"

#include <algorithm>

namespace phalanx {
namespace {

constexpr std::size_t kCopyBytes = 4 << 20;
constexpr const char* kConfigFile = "/config.json";
constexpr const char* kTemplateFile = "/chat_template.jinja";
constexpr std::uint64_t kLargestTemplate = 1 << 20;

struct SavedTensor {
  PlacedElements elements;
  Dtype dtype;  // on disk
};

// A run of bytes of a tensor that is copied from the source as it is.
struct CarriedPiece {
  StoredTensor stored;
  std::uint64_t first;
  std::size_t bytes;
};

const WeightForm& merged_form(const WeightRule& rule) {
  for (const WeightForm& form : rule.forms) {
    if (form.placements.size() == 1 && form.placements.front().source == rule.parameter) {
      return form;
    }
  }
  fail("weight map of ", rule.parameter, ": it has no merged form");
}

const char* torch_dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
    case Dtype::kF32:
      return "float32";
    case Dtype::kF64:
      return "float64";
    default:
      fail("weights cannot be written as ", dtype_name(dtype), "; choose BF16, F16 or F32");
  }
}

// config.json tells its readers which dtype to load the weights in.
std::string config_text(Json config, const HfCheckpoint* source, std::optional<Dtype> dtype) {
  if (dtype) {
    config.set(config.find("torch_dtype") ? "torch_dtype" : "dtype", torch_dtype_name(*dtype));
  }
  if (source != nullptr) {
    const std::string path = source->folder() + kConfigFile;
    std::string text = read_text(path);
    if (Json::parse(text, path) == config) {
      return text;
    }
  }
  return config.dump(2) + "\n";
}

class ModelWriter {
 public:
  ModelWriter(const WeightMap& map, const std::vector<ParameterBuffer>& parameters,
              const HfCheckpoint* source, const SaveModelOptions& options)
      : source_(source), options_(options) {
    const ParameterBuffers buffers(map, parameters);
    WeightMatch match;
    if (source_ != nullptr) {
      match = match_weights(map, *source_);
    }
    for (std::size_t i = 0; i < map.rules.size(); ++i) {
      const WeightForm* source_form = source_ != nullptr ? match.forms[i] : nullptr;
      declare(map.rules[i], source_form, buffers.at(map.rules[i].parameter));
    }
    for (const StoredTensor& stored : match.carried) {
      carry(stored);
    }
  }

  void write(const std::string& folder, ThreadPool& threads) const {
    HfCheckpointWriter writer(folder, declared_, options_.max_shard_bytes);
    threads.parallel_for(pieces_.size() + carried_.size(), [&](std::size_t i) {
      if (i < pieces_.size()) {
        write_piece(pieces_[i], writer);
      } else {
        copy_piece(carried_[i - pieces_.size()], writer);
      }
    });
    writer.commit();
  }

 private:
  const WeightForm& choose_form(const WeightRule& rule, const WeightForm* source_form) const {
    switch (options_.layout) {
      case WeightLayout::kMerged:
        return merged_form(rule);
      case WeightLayout::kSource:
        return source_form != nullptr ? *source_form : rule.forms.front();
      case WeightLayout::kReleased:
        break;
    }
    return rule.forms.front();
  }

  // As the source has the tensor; where it stores the parameter in another form, as it has that form's first tensor.
  Dtype choose_dtype(const Placement& placement, const WeightForm* source_form,
                     const ParameterBuffer& buffer) const {
    if (options_.dtype) {
      return *options_.dtype;
    }
    if (source_form == nullptr) {
      return buffer.dtype;
    }
    const StoredTensor* stored = source_->find(placement.source);
    return (stored ? stored : source_->find(source_form->placements.front().source))->info->dtype;
  }

  void declare(const WeightRule& rule, const WeightForm* source_form, const ParameterBuffer& buffer) {
    for (const Placement& placement : choose_form(rule, source_form).placements) {
      const Dtype dtype = choose_dtype(placement, source_form, buffer);
      PHALANX_CHECK(can_convert(buffer.dtype, dtype), Error, "parameter ", rule.parameter, " is held as ",
                    dtype_name(buffer.dtype), ", which cannot be written as ", dtype_name(dtype));
      const SavedTensor tensor{PlacedElements(placement, buffer), dtype};
      tensor.elements.split(tensors_.size(), &pieces_);
      tensors_.push_back(tensor);
      declared_.push_back({placement.source, dtype, placement.source_shape, 0, 0});
    }
  }

  void carry(const StoredTensor& stored) {
    declared_.push_back(*stored.info);
    for (std::uint64_t first = 0; first < stored.info->bytes(); first += kCopyBytes) {
      carried_.push_back(
          {stored, first,
           static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, stored.info->bytes() - first))});
    }
  }

  void write_piece(const Piece& piece, HfCheckpointWriter& writer) const {
    const auto& [elements, dtype] = tensors_[piece.tensor];
    const auto count = static_cast<std::size_t>(piece.count);
    const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    const std::byte* from = elements.contiguous(piece.first);
    std::unique_ptr<std::byte[]> gathered;
    if (from == nullptr) {
      gathered = make_staging(count * elements.element_bytes());
      elements.gather(piece.first, piece.count, gathered.get());
      from = gathered.get();
    }
    std::unique_ptr<std::byte[]> converted;
    if (dtype != elements.dtype()) {
      converted = make_staging(count * element);
      convert_elements(from, elements.dtype(), converted.get(), dtype, count);
      from = converted.get();
    }
    writer.write(elements.placement().source, static_cast<std::uint64_t>(piece.first) * element,
                 count * element, from);
  }

  static void copy_piece(const CarriedPiece& piece, HfCheckpointWriter& writer) {
    const auto staging = make_staging(piece.bytes);
    piece.stored.file->read(*piece.stored.info, piece.first, piece.bytes, staging.get());
    writer.write(piece.stored.info->name, piece.first, piece.bytes, staging.get());
  }

  const HfCheckpoint* source_;
  const SaveModelOptions& options_;
  std::vector<TensorInfo> declared_;
  std::vector<SavedTensor> tensors_;
  std::vector<Piece> pieces_;
  std::vector<CarriedPiece> carried_;
};

}  // namespace

void save_model_folder(const std::string& folder, const Json& config, const WeightMap& map,
                       const std::vector<ParameterBuffer>& parameters, const HfCheckpoint* source,
                       const SaveModelOptions& options, ThreadPool& threads) {
  const ModelWriter weights(map, parameters, source, options);
  const std::string config_json = config_text(config, source, options.dtype);
  const std::string chat_template =
      options.chat_template.empty() ? "" : read_text(options.chat_template, kLargestTemplate);
  AtomicDirectory output(folder, options.existing);
  weights.write(output.path(), threads);
  if (source != nullptr) {
    copy_side_files(source->folder(), output.path());
  }
  if (!options.chat_template.empty()) {
    write_file_atomic(output.path() + kTemplateFile, chat_template);
  }
  write_file_atomic(output.path() + kConfigFile, config_json);
  output.commit();
}

}  // namespace phalanx
