// Folders as `phalanx prepare` writes them, made of given samples.
#pragma once
#include "core/json.h"
#include "temporary_folder.h"

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx::testing {

struct Sample {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> loss_mask;
};

// Samples of these lengths; the second half of each is supervised. Token ids are drawn by `seed` below `vocab_size`.
std::vector<Sample> make_samples(const std::vector<std::int64_t>& lengths, std::int32_t vocab_size = 1000,
                                 std::uint64_t seed = 1);

// `count` lengths spread over the quantiles of a real data set (0%, 5%, ... 100%), in a shuffled order.
std::vector<std::int64_t> lengths_like(const std::vector<double>& quantiles, std::int64_t count);

// Token lengths of GSM8K's training set and of a thousand alpaca rows, in a ChatML template and a BPE vocabulary of
// 8,000, as measured.
extern const std::vector<double> kGsm8kQuantiles;
extern const std::vector<double> kAlpacaQuantiles;

// Writes shards of at most `samples_per_shard` and the manifest.
void write_token_folder(const std::string& path, const std::vector<Sample>& samples,
                        std::size_t samples_per_shard = 1000, const std::string& key = "key-1");

void write_text(const std::string& path, const std::string& text);

// Lets `change` edit the manifest in place.
template <class Change>
void edit_manifest(const std::string& folder, Change change) {
  Json manifest = Json::parse_file(folder + "/manifest.json");
  change(manifest);
  write_text(folder + "/manifest.json", manifest.dump(2));
}

// The message of the exception that `body` throws, or "no error".
template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace phalanx::testing
