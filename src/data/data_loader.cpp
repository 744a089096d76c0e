#include "data/data_loader.h"

#include "core/error.h"
#include "data/epoch_plan.h"
#include "data/token_shards.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace phalanx {
namespace {

constexpr std::int64_t kIgnored = -100;  // PyTorch's ignore_index

void check_options(const LoaderOptions& options) {
  const auto check = [](bool good, const char* name, const auto& value, const char* wanted) {
    PHALANX_CHECK(good, ConfigError, "data loader: ", name, " is ", value, ", should be ", wanted);
  };
  check(options.sequence_length >= 1, "sequence_length", options.sequence_length, "at least 1");
  check(options.rows >= 1, "rows", options.rows, "at least 1");
  check(options.world >= 1, "world", options.world, "at least 1");
  check(options.rank >= 0 && options.rank < options.world, "rank", options.rank, "below world");
  check(options.on_long == "drop" || options.on_long == "truncate" || options.on_long == "error", "on_long",
        options.on_long, "drop, truncate or error");
  check(options.validation_fraction >= 0 && options.validation_fraction < 1, "validation_fraction",
        options.validation_fraction, "at least 0 and below 1");
  check(!options.validation_part || options.validation_fraction > 0, "validation_fraction",
        options.validation_fraction, "above 0 to load the validation part");
}

// Targets among the first `length` tokens; the first token has nothing before it that could predict it.
std::int64_t count_targets(std::span<const std::uint8_t> loss_mask, std::int64_t length) {
  return length == 0 ? 0 : std::count(loss_mask.begin() + 1, loss_mask.begin() + length, std::uint8_t{1});
}

using Sources = std::set<std::pair<std::string, std::string>>;  // path and SHA-256

Sources sources_of(const Json& folders) {
  Sources sources;
  for (const Json& folder : folders.as_array()) {
    for (const auto& [path, hash] : folder.as_object()) {
      sources.emplace(path, hash.as_string());
    }
  }
  return sources;
}

std::string paths_of(const Sources& sources) {
  std::string text;
  for (const auto& [path, hash] : sources) {
    text += (text.empty() ? "" : ", ") + path;
  }
  return text;
}

[[noreturn]] void refuse_other_data(const Sources& before, const Sources& now) {
  constexpr const char* kCure = "; put the old data back, or start anew in another output folder";
  for (const auto& [path, hash] : before) {
    const auto same_path = now.lower_bound({path, ""});
    PHALANX_CHECK(now.contains({path, hash}) || same_path == now.end() || same_path->first != path,
                  ConfigError, path, ": has changed since the checkpoint was saved: its SHA-256 was ", hash,
                  " and is ", same_path->second, kCure);
  }
  PHALANX_CHECK(
      before != now, ConfigError,
      "the data files are those of the checkpoint, but they were prepared in another way (tokenizer, "
      "chat template or options)",
      kCure);
  fail<ConfigError>("the checkpoint was saved with other data files: ", paths_of(before), ", now ",
                    paths_of(now), kCure);
}

}  // namespace

struct DataLoader::Impl {
  LoaderOptions options;
  std::vector<TokenFolder> folders;
  std::vector<std::int64_t> first_ids;  // of each folder, and the number of all samples
  std::vector<std::int64_t> lengths;    // by sample id, as used: after truncation
  std::vector<std::int64_t> samples;    // ids in use
  std::int64_t dropped = 0;
  std::int64_t truncated = 0;
  std::int64_t longest = 0;
  std::int64_t total_tokens = 0;
  std::int64_t supervised_tokens = 0;

  std::int64_t epoch = 0;
  std::vector<Row> rows;      // of this epoch
  std::int64_t next_row = 0;  // of all ranks

  struct Located {
    const TokenFolder& folder;
    std::int64_t index;  // in the folder
  };

  Located locate(std::int64_t id) const {
    const auto folder = std::upper_bound(first_ids.begin(), first_ids.end(), id) - first_ids.begin() - 1;
    return {folders[folder], id - first_ids[folder]};
  }

  void open(const std::vector<std::string>& paths, std::int64_t vocab_size) {
    PHALANX_CHECK(!paths.empty(), ConfigError, "data loader: no data folder given");
    first_ids.push_back(0);
    for (const std::string& path : paths) {
      folders.emplace_back(path, vocab_size);
      first_ids.push_back(first_ids.back() + folders.back().num_samples());
    }
  }

  void select_samples() {
    const std::int64_t count = first_ids.back();
    Split split = split_samples(count, options.validation_fraction, options.seed);
    const std::vector<std::int64_t>& part = options.validation_part ? split.validation : split.train;
    PHALANX_CHECK(!part.empty(), ConfigError, folders.front().path(), ": of ", count,
                  " samples none is left for training: data.validation_fraction ",
                  options.validation_fraction, " holds out all of them; lower it, or give more data");
    lengths.assign(count, 0);
    for (const std::int64_t id : part) {
      add_sample(id);
    }
    const bool cut = options.on_long == "truncate";
    PHALANX_CHECK(!samples.empty(), ConfigError, folders.front().path(), ": no sample is usable: all ",
                  part.size(), options.validation_part ? " held out for validation" : "",
                  " are longer than data.sequence_length ", options.sequence_length,
                  cut ? " and have no target of the loss before it" : "", ", the longest ", longest,
                  "; write --sequence-length ", longest, cut ? "" : ", or --on-long truncate");
  }

  void add_sample(std::int64_t id) {
    const auto [folder, index] = locate(id);
    const auto loss_mask = folder.loss_mask(index);
    const auto length = static_cast<std::int64_t>(loss_mask.size());
    longest = std::max(longest, length);
    const bool is_long = length > options.sequence_length;
    PHALANX_CHECK(!is_long || options.on_long != "error", ConfigError, folder.path(), ": sample ", index,
                  " (", folder.origin(index), ") has ", length, " tokens, more than sequence_length ",
                  options.sequence_length,
                  "; raise data.sequence_length, or set data.on_long to drop or truncate");
    const std::int64_t kept = std::min(length, options.sequence_length);
    const std::int64_t targets = count_targets(loss_mask, kept);
    if (is_long && (options.on_long == "drop" || targets == 0)) {
      ++dropped;
      return;
    }
    truncated += is_long;
    lengths[id] = kept;
    samples.push_back(id);
    total_tokens += kept;
    supervised_tokens += targets;
  }

  void begin_epoch(std::int64_t number) {
    epoch = number;
    next_row = 0;
    const EpochPlanOptions plan{.sequence_length = options.sequence_length,
                                .packing = options.packing,
                                .shuffle = options.shuffle,
                                .seed = options.seed};
    rows = plan_epoch(samples, lengths, plan, static_cast<std::uint64_t>(number));
  }

  void append_document(std::int64_t id, Batch& batch) const {
    const auto [folder, index] = locate(id);
    const auto tokens = folder.tokens(index);
    const auto loss_mask = folder.loss_mask(index);
    const std::int64_t length = lengths[id];
    for (std::int64_t i = 0; i < length; ++i) {
      const bool target = i + 1 < length && loss_mask[i + 1] == 1;
      batch.tokens.push_back(tokens[i]);
      batch.labels.push_back(target ? tokens[i + 1] : kIgnored);
      batch.supervised_tokens += target;
    }
    batch.lengths.push_back(length);
    batch.sample_ids.push_back(id);
  }

  Batch next() {
    if (next_row == static_cast<std::int64_t>(rows.size())) {
      begin_epoch(epoch + 1);
    }
    const std::int64_t end = std::min<std::int64_t>(next_row + options.world * options.rows,
                                                    static_cast<std::int64_t>(rows.size()));
    Batch batch;
    for (std::int64_t row = next_row + options.rank; row < end; row += options.world) {
      for (const std::int64_t id : rows[row]) {
        append_document(id, batch);
      }
    }
    next_row = end;
    return batch;
  }

  Json sources() const {
    Json all = Json::array();
    for (const TokenFolder& folder : folders) {
      all.push_back(folder.sources());
    }
    return all;
  }

  // All that decides which rows an epoch has and their order.
  Json identity() const {
    Json keys = Json::array();
    for (const TokenFolder& folder : folders) {
      keys.push_back(folder.key());
    }
    Json out = Json::object();
    out.set("folders", std::move(keys));
    out.set("sequence_length", options.sequence_length);
    out.set("packing", options.packing);
    out.set("on_long", options.on_long);
    out.set("seed", std::to_string(options.seed));  // JSON's integers end at 2^63 - 1
    out.set("shuffle", options.shuffle);
    out.set("validation_fraction", options.validation_fraction);
    out.set("validation_part", options.validation_part);
    return out;
  }
};

DataLoader::DataLoader(const std::vector<std::string>& folders, const LoaderOptions& options,
                       std::int64_t vocab_size)
    : impl_(std::make_unique<Impl>()) {
  check_options(options);
  impl_->options = options;
  impl_->open(folders, vocab_size);
  impl_->select_samples();
  impl_->begin_epoch(0);
  PHALANX_CHECK(num_rows() >= options.world, ConfigError, folders.front(), ": the data fill ", num_rows(),
                " rows, fewer than the ", options.world,
                " data-parallel ranks; use fewer ranks, more data or a smaller data.sequence_length");
}

DataLoader::~DataLoader() = default;

Batch DataLoader::next() { return impl_->next(); }

std::int64_t DataLoader::batches_per_epoch() const {
  const std::int64_t step = impl_->options.world * impl_->options.rows;
  return (num_rows() + step - 1) / step;
}

double DataLoader::epoch() const {
  return static_cast<double>(impl_->epoch) +
         static_cast<double>(impl_->next_row) / static_cast<double>(num_rows());
}

std::int64_t DataLoader::num_samples() const { return static_cast<std::int64_t>(impl_->samples.size()); }
std::int64_t DataLoader::num_rows() const { return static_cast<std::int64_t>(impl_->rows.size()); }
std::int64_t DataLoader::num_dropped() const { return impl_->dropped; }
std::int64_t DataLoader::num_truncated() const { return impl_->truncated; }
std::int64_t DataLoader::longest_sample() const { return impl_->longest; }
std::int64_t DataLoader::tokens_per_epoch() const { return impl_->total_tokens; }
std::int64_t DataLoader::supervised_tokens_per_epoch() const { return impl_->supervised_tokens; }

double DataLoader::fill_rate() const {
  return static_cast<double>(tokens_per_epoch()) /
         (static_cast<double>(num_rows()) * static_cast<double>(impl_->options.sequence_length));
}

Json DataLoader::state() const {
  Json out = Json::object();
  out.set("epoch", impl_->epoch);
  out.set("next_row", impl_->next_row);
  out.set("data", impl_->identity());
  out.set("sources", impl_->sources());
  return out;
}

void DataLoader::restore(const Json& state) {
  const Json now = impl_->identity();
  for (const auto& [name, value] : now.as_object()) {
    const Json* saved = state.at("data").find(name);
    if (saved != nullptr && name == "folders" && *saved != value) {
      refuse_other_data(sources_of(state.at("sources")), sources_of(impl_->sources()));
    }
    PHALANX_CHECK(saved != nullptr && *saved == value, ConfigError,
                  "the checkpoint was saved with other data: ", name, " was ",
                  saved == nullptr ? "absent" : saved->dump(), " and is now ", value.dump(),
                  "; set it back, or start anew in another output folder");
  }
  const std::int64_t epoch = state.at("epoch").as_integer();
  const std::int64_t next_row = state.at("next_row").as_integer();
  PHALANX_CHECK(epoch >= 0 && next_row >= 0 && next_row <= num_rows(), ConfigError,
                "data loader: saved position epoch ", epoch, ", row ", next_row, " lies outside the ",
                num_rows(), " rows of an epoch; the state is damaged");
  impl_->begin_epoch(epoch);
  impl_->next_row = next_row;
}

}  // namespace phalanx
