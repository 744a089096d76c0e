// A folder written by `phalanx prepare`, read into memory and checked against its manifest.
//
//   manifest.json   counts, sources, options, and of each shard its name, size and checksum
//   shard-*.safetensors, each with
//     tokens     [N]            int32
//     loss_mask  [N]            uint8, 1: the token is a target of the loss
//     offsets    [samples + 1]  int64, where each sample begins in `tokens`
//     sources    [samples]      int32, which of the manifest's sources it came from
//     lines      [samples]      int64, its line in that file
#pragma once
#include "core/json.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace phalanx {

// All shards of one folder, end to end; 5 bytes a token and 20 a sample.
class TokenFolder {
 public:
  // Throws IoError when a file is missing, damaged or disagrees with the manifest, and for a token id outside
  // [0, vocab_size): file, sample, position, id and limit are named.
  TokenFolder(std::string path, std::int64_t vocab_size);

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }           // hash of all that decided the content
  const Json& sources() const { return sources_by_path_; }  // {path: SHA-256 of the data file}
  std::int64_t num_samples() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::span<const std::int32_t> tokens(std::int64_t sample) const;
  std::span<const std::uint8_t> loss_mask(std::int64_t sample) const;
  std::string origin(std::int64_t sample) const;  // "chat.jsonl:17"

 private:
  void append_shard(const Json& entry, std::int64_t vocab_size);  // entry: of the manifest's "shards"
  void check_samples(std::int64_t first, const std::string& shard, std::int64_t vocab_size) const;

  std::string path_;
  std::string key_;
  std::vector<std::string> source_names_;
  Json sources_by_path_ = Json::object();
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint8_t> loss_mask_;
  std::vector<std::int64_t> offsets_{0};
  std::vector<std::int32_t> sources_;
  std::vector<std::int64_t> lines_;
};

}  // namespace phalanx
