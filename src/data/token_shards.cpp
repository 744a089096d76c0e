#include "data/token_shards.h"

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/text.h"
#include "io/safetensors.h"

#include <algorithm>
#include <filesystem>

namespace phalanx {
namespace {

constexpr const char* kFormat = "phalanx-token-shards";
constexpr std::int64_t kVersion = 1;
constexpr const char* kPrepareAgain = "; write the folder again with `phalanx prepare`";

// Reads a whole tensor behind the end of `out` and compares its checksum with the manifest's.
template <class Element>
void append_tensor(const SafetensorsFile& file, const Json& entry, const char* name, Dtype dtype,
                   std::int64_t count, std::vector<Element>& out) {
  const TensorInfo& info = file.at(name);
  PHALANX_CHECK(info.dtype == dtype && info.shape == std::vector<std::int64_t>{count}, IoError, file.path(),
                ": tensor ", name, " is ", dtype_name(info.dtype), " ", shape_text(info.shape),
                ", by the manifest it should be ", dtype_name(dtype), " [", count, "]", kPrepareAgain);
  const std::size_t before = out.size();
  out.resize(before + count);
  file.read(info, 0, info.bytes(), out.data() + before);
  const std::string found = hex_digest(xxh64(out.data() + before, count * sizeof(Element)));
  const std::string& expected = entry.at("checksums").at(name).as_string();
  PHALANX_CHECK(found == expected, IoError, file.path(), ": tensor ", name, " is damaged: checksum ", found,
                ", the manifest has ", expected, kPrepareAgain);
}

Json read_manifest(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  PHALANX_CHECK(std::filesystem::is_directory(folder), IoError, folder, ": no such folder");
  PHALANX_CHECK(
      std::filesystem::exists(path), IoError, folder,
      ": no manifest.json in it, so it was not written by `phalanx prepare`; pass the data file itself or "
      "such a folder");
  Json manifest = Json::parse_file(path);
  const Json* format = manifest.find("format");
  PHALANX_CHECK(format != nullptr && *format == Json(kFormat), IoError, path, ": \"format\" is not \"",
                kFormat, "\"", kPrepareAgain);
  PHALANX_CHECK(manifest.at("version") == Json(kVersion), IoError, path, ": version ",
                manifest.at("version").dump(), ", this program reads ", kVersion, kPrepareAgain);
  return manifest;
}

std::string shard_path(const std::string& folder, const Json& entry) {
  const std::string& name = entry.at("name").as_string();
  PHALANX_CHECK(!name.empty() && name.front() != '.' && name.find('/') == std::string::npos, IoError, folder,
                "/manifest.json: shard name ", in_quotes(name), " is not a plain file name", kPrepareAgain);
  return folder + "/" + name;
}

}  // namespace

TokenFolder::TokenFolder(std::string path, std::int64_t vocab_size) : path_(std::move(path)) {
  const Json manifest = read_manifest(path_);
  try {
    key_ = manifest.at("key").as_string();
    for (const Json& source : manifest.at("sources").as_array()) {
      source_names_.push_back(source.at("path").as_string());
      sources_by_path_.set(source_names_.back(), source.at("sha256").as_string());
    }
    for (const Json& entry : manifest.at("shards").as_array()) {
      append_shard(entry, vocab_size);
    }
  } catch (const IoError&) {
    throw;
  } catch (const Error& error) {  // a missing or mistyped key
    fail<IoError>(path_, "/manifest.json: ", error.what(), kPrepareAgain);
  }
}

void TokenFolder::append_shard(const Json& entry, std::int64_t vocab_size) {
  const std::string path = shard_path(path_, entry);
  PHALANX_CHECK(std::filesystem::exists(path), IoError, path,
                ": the manifest names this file and it is missing", kPrepareAgain);
  const SafetensorsFile file(path);
  const std::int64_t samples = entry.at("samples").as_integer();
  const std::int64_t count = entry.at("tokens").as_integer();
  const std::int64_t first_sample = num_samples();
  const std::int64_t first_token = offsets_.back();

  offsets_.pop_back();  // the shard's own first offset, 0, takes its place
  append_tensor(file, entry, "offsets", Dtype::kI64, samples + 1, offsets_);
  append_tensor(file, entry, "tokens", Dtype::kI32, count, tokens_);
  append_tensor(file, entry, "loss_mask", Dtype::kU8, count, loss_mask_);
  append_tensor(file, entry, "sources", Dtype::kI32, samples, sources_);
  append_tensor(file, entry, "lines", Dtype::kI64, samples, lines_);

  const auto offsets = std::span(offsets_).subspan(first_sample);
  PHALANX_CHECK(
      offsets.front() == 0 && offsets.back() == count &&
          std::adjacent_find(offsets.begin(), offsets.end(), std::greater_equal<>()) == offsets.end(),
      IoError, path, ": offsets do not rise from 0 to ", count, kPrepareAgain);
  for (std::int64_t& offset : offsets) {
    offset += first_token;
  }
  check_samples(first_sample, path, vocab_size);
}

void TokenFolder::check_samples(std::int64_t first, const std::string& shard, std::int64_t vocab_size) const {
  const auto num_sources = static_cast<std::int32_t>(source_names_.size());
  for (std::int64_t sample = first; sample < num_samples(); ++sample) {
    PHALANX_CHECK(sources_[sample] >= 0 && sources_[sample] < num_sources, IoError, shard, ": sample ",
                  sample - first, " comes from source ", sources_[sample], ", the manifest lists ",
                  num_sources, kPrepareAgain);
    const auto ids = tokens(sample);
    const auto bad =
        std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
    PHALANX_CHECK(bad == ids.end(), IoError, shard, ": sample ", sample - first, " (", origin(sample),
                  "), position ", bad - ids.begin(), ": token id ", *bad,
                  " is outside the model's vocabulary of ", vocab_size,
                  "; prepare the data with this model's own tokenizer");
  }
}

std::span<const std::int32_t> TokenFolder::tokens(std::int64_t sample) const {
  return std::span(tokens_).subspan(offsets_[sample], offsets_[sample + 1] - offsets_[sample]);
}

std::span<const std::uint8_t> TokenFolder::loss_mask(std::int64_t sample) const {
  return std::span(loss_mask_).subspan(offsets_[sample], offsets_[sample + 1] - offsets_[sample]);
}

std::string TokenFolder::origin(std::int64_t sample) const {
  return concat(source_names_[sources_[sample]], ":", lines_[sample]);
}

}  // namespace phalanx
