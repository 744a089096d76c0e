#include "fixture.h"

#include "core/error.h"
#include "core/hash.h"
#include "core/philox.h"
#include "io/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace phalanx::testing {

const std::vector<double> kGsm8kQuantiles = {56,  90,  100, 107, 114, 120, 126, 132, 138, 145, 152,
                                             159, 167, 175, 185, 195, 205, 221, 240, 271, 458};
const std::vector<double> kAlpacaQuantiles = {24,  38,  46,  51,  56,  65,  77,  94,  115, 138, 163,
                                              190, 217, 253, 289, 330, 371, 412, 454, 506, 768};

std::vector<Sample> make_samples(const std::vector<std::int64_t>& lengths, std::int32_t vocab_size,
                                 std::uint64_t seed) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    Sample sample;
    for (std::int64_t t = 0; t < lengths[i]; ++t) {
      sample.tokens.push_back(static_cast<std::int32_t>(philox_block(seed, i, t)[0] % vocab_size));
      sample.loss_mask.push_back(t >= lengths[i] / 2 && t > 0);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<std::int64_t> lengths_like(const std::vector<double>& quantiles, std::int64_t count) {
  std::vector<std::int64_t> lengths;
  const auto segments = static_cast<double>(quantiles.size() - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = segments * philox_uniform4(7, 0, i)[0];
    const auto segment = static_cast<std::size_t>(at);
    const double share = at - static_cast<double>(segment);
    lengths.push_back(
        static_cast<std::int64_t>(quantiles[segment] * (1 - share) + quantiles[segment + 1] * share));
  }
  return lengths;
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

namespace {

struct Shard {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> loss_mask;
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> sources;
  std::vector<std::int64_t> lines;
};

template <class Element>
void write_tensor(SafetensorsWriter& writer, Json& checksums, const char* name,
                  const std::vector<Element>& values) {
  const std::size_t bytes = values.size() * sizeof(Element);
  writer.write(writer.at(name), 0, bytes, values.data());
  checksums.set(name, hex_digest(xxh64(values.data(), bytes)));
}

Json write_shard(const std::string& folder, const std::string& name, const Shard& shard) {
  const auto tokens = static_cast<std::int64_t>(shard.tokens.size());
  const auto samples = static_cast<std::int64_t>(shard.sources.size());
  SafetensorsWriter writer(folder + "/" + name,
                           {{.name = "tokens", .dtype = Dtype::kI32, .shape = {tokens}},
                            {.name = "loss_mask", .dtype = Dtype::kU8, .shape = {tokens}},
                            {.name = "offsets", .dtype = Dtype::kI64, .shape = {samples + 1}},
                            {.name = "sources", .dtype = Dtype::kI32, .shape = {samples}},
                            {.name = "lines", .dtype = Dtype::kI64, .shape = {samples}}});
  Json checksums = Json::object();
  write_tensor(writer, checksums, "tokens", shard.tokens);
  write_tensor(writer, checksums, "loss_mask", shard.loss_mask);
  write_tensor(writer, checksums, "offsets", shard.offsets);
  write_tensor(writer, checksums, "sources", shard.sources);
  write_tensor(writer, checksums, "lines", shard.lines);
  writer.commit();
  Json entry = Json::object();
  entry.set("name", name);
  entry.set("samples", samples);
  entry.set("tokens", tokens);
  entry.set("checksums", std::move(checksums));
  return entry;
}

}  // namespace

void write_token_folder(const std::string& path, const std::vector<Sample>& samples,
                        std::size_t samples_per_shard, const std::string& key) {
  std::filesystem::create_directories(path);
  Json shards = Json::array();
  for (std::size_t first = 0; first < samples.size(); first += samples_per_shard) {
    Shard shard;
    for (std::size_t i = first; i < std::min(first + samples_per_shard, samples.size()); ++i) {
      shard.tokens.insert(shard.tokens.end(), samples[i].tokens.begin(), samples[i].tokens.end());
      shard.loss_mask.insert(shard.loss_mask.end(), samples[i].loss_mask.begin(), samples[i].loss_mask.end());
      shard.offsets.push_back(static_cast<std::int64_t>(shard.tokens.size()));
      shard.sources.push_back(0);
      shard.lines.push_back(static_cast<std::int64_t>(i) + 1);
    }
    shards.push_back(write_shard(path, concat("shard-", shards.as_array().size(), ".safetensors"), shard));
  }
  Json source = Json::object();
  source.set("path", "chat.jsonl");
  source.set("sha256", "hash of " + key);
  Json manifest = Json::object();
  manifest.set("format", "phalanx-token-shards");
  manifest.set("version", 1);
  manifest.set("key", key);
  manifest.set("sources", Json(Json::Array{source}));
  manifest.set("shards", std::move(shards));
  write_text(path + "/manifest.json", manifest.dump(2));
}

}  // namespace phalanx::testing
