#include "data/data_loader.h"

#include "core/error.h"
#include "fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>

namespace phalanx {
namespace {

using testing::Sample;
constexpr std::int64_t kVocab = 1000;

bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.labels == b.labels && a.lengths == b.lengths &&
         a.sample_ids == b.sample_ids && a.supervised_tokens == b.supervised_tokens;
}

// Two folders, three shards, ids counted through.
class DataLoaderTest : public ::testing::Test {
 protected:
  DataLoaderTest() {
    samples_ = testing::make_samples(testing::lengths_like(testing::kAlpacaQuantiles, 120), kVocab);
    const auto middle = samples_.begin() + 70;
    testing::write_token_folder(root_ / "a", {samples_.begin(), middle}, 40, "key-a");
    testing::write_token_folder(root_ / "b", {middle, samples_.end()}, 1000, "key-b");
  }

  DataLoader open(const LoaderOptions& options, std::int64_t vocab = kVocab) const {
    return DataLoader({root_ / "a", root_ / "b"}, options, vocab);
  }

  // Documents whole, with their own tokens and shifted labels.
  void expect_own_documents(const Batch& batch, std::int64_t capacity) const {
    std::size_t at = 0;
    std::int64_t supervised = 0;
    ASSERT_EQ(batch.lengths.size(), batch.sample_ids.size());
    for (std::size_t d = 0; d < batch.lengths.size(); ++d) {
      const Sample& sample = samples_[batch.sample_ids[d]];
      const auto length = static_cast<std::size_t>(batch.lengths[d]);
      ASSERT_EQ(length, std::min<std::size_t>(sample.tokens.size(), capacity));
      for (std::size_t i = 0; i < length; ++i, ++at) {
        ASSERT_EQ(batch.tokens[at], sample.tokens[i]);
        const bool target = i + 1 < length && sample.loss_mask[i + 1] == 1;
        ASSERT_EQ(batch.labels[at], target ? sample.tokens[i + 1] : -100);
        supervised += target;
      }
    }
    EXPECT_EQ(at, batch.tokens.size());
    EXPECT_EQ(at, batch.labels.size());
    EXPECT_EQ(supervised, batch.supervised_tokens);
  }

  TemporaryFolder root_;
  std::vector<Sample> samples_;
};

TEST_F(DataLoaderTest, EachSampleOnceAnEpochWhateverTheRanks) {
  for (const bool packing : {true, false}) {
    for (const int world : {1, 2, 3, 8}) {
      for (const std::int64_t rows : {1, 3}) {
        std::map<std::int64_t, int> seen;
        std::int64_t tokens = 0;
        for (int rank = 0; rank < world; ++rank) {
          DataLoader loader =
              open({.packing = packing, .rows = rows, .seed = 3, .rank = rank, .world = world});
          for (int epoch = 1; epoch <= 2; ++epoch) {
            for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b) {
              const Batch batch = loader.next();
              expect_own_documents(batch, 1024);
              EXPECT_LE(batch.tokens.size(), static_cast<std::size_t>(1024 * rows));
              tokens += static_cast<std::int64_t>(batch.tokens.size());
              for (const std::int64_t id : batch.sample_ids) {
                ++seen[id];
              }
            }
            EXPECT_EQ(loader.epoch(), epoch);
          }
          if (rank == world - 1) {
            EXPECT_EQ(tokens, 2 * loader.tokens_per_epoch());
          }
        }
        ASSERT_EQ(seen.size(), samples_.size());
        EXPECT_TRUE(
            std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 2; }));
      }
    }
  }
}

TEST_F(DataLoaderTest, ResumeAtEveryPositionEqualsTheUnbrokenRun) {
  const LoaderOptions options{.rows = 2, .seed = 9, .rank = 1, .world = 2};
  DataLoader unbroken = open(options);
  const auto count = static_cast<std::size_t>(2 * unbroken.batches_per_epoch() + 3);
  std::vector<Batch> batches;
  std::vector<Json> states;
  for (std::size_t i = 0; i < count; ++i) {
    states.push_back(unbroken.state());
    batches.push_back(unbroken.next());
  }
  for (std::size_t start = 0; start < count; ++start) {
    DataLoader resumed = open(options);
    resumed.restore(Json::parse(states[start].dump(), "state"));
    for (std::size_t i = start; i < count; ++i) {
      ASSERT_TRUE(same(resumed.next(), batches[i])) << "from " << start << " at " << i;
    }
  }
}

TEST_F(DataLoaderTest, ResumeOnAnotherNumberOfRanksLeavesNothingOut) {
  DataLoader alone = open({.seed = 4});
  std::map<std::int64_t, int> seen;
  for (int i = 0; i < 7; ++i) {
    for (const std::int64_t id : alone.next().sample_ids) {
      ++seen[id];
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader loader = open({.seed = 4, .rank = rank, .world = 3});
    loader.restore(alone.state());
    while (loader.epoch() < 1) {
      for (const std::int64_t id : loader.next().sample_ids) {
        ++seen[id];
      }
    }
  }
  ASSERT_EQ(seen.size(), samples_.size());
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 1; }));
}

TEST_F(DataLoaderTest, RestoreNamesWhatDiffers) {
  const Json state = open({.seed = 4}).state();
  DataLoader other = open({.sequence_length = 2048, .seed = 4});
  const std::string message = testing::message_of([&] { other.restore(state); });
  EXPECT_NE(message.find("sequence_length was 1024 and is now 2048"), std::string::npos) << message;
  testing::write_token_folder(root_ / "c", samples_, 1000, "key-c");
  DataLoader changed({root_ / "c"}, {.seed = 4}, kVocab);
  const std::string data = testing::message_of([&] { changed.restore(state); });
  EXPECT_NE(data.find("chat.jsonl: has changed since the checkpoint was saved: its SHA-256 was hash of key-a "
                      "and is hash of key-c"),
            std::string::npos)
      << data;
  Json damaged = state;
  damaged.set("next_row", 1'000'000);
  DataLoader loader = open({.seed = 4});
  EXPECT_THROW(loader.restore(damaged), ConfigError);
}

TEST_F(DataLoaderTest, LongSamplesAreDroppedTruncatedOrRefused) {
  const auto longer =
      std::count_if(samples_.begin(), samples_.end(), [](const Sample& s) { return s.tokens.size() > 300; });
  ASSERT_GT(longer, 0);
  DataLoader dropping = open({.sequence_length = 300});
  EXPECT_EQ(dropping.num_dropped(), longer);
  EXPECT_EQ(dropping.num_samples(), static_cast<std::int64_t>(samples_.size()) - longer);

  DataLoader truncating = open({.sequence_length = 300, .on_long = "truncate"});
  // A sample of 600 or more is supervised from its middle on: nothing of that is left.
  const auto useless =
      std::count_if(samples_.begin(), samples_.end(), [](const Sample& s) { return s.tokens.size() >= 600; });
  EXPECT_EQ(truncating.num_dropped(), useless);
  EXPECT_EQ(truncating.num_truncated(), longer - useless);
  for (std::int64_t b = 0; b < truncating.batches_per_epoch(); ++b) {
    expect_own_documents(truncating.next(), 300);
  }

  const std::string message =
      testing::message_of([&] { open({.sequence_length = 300, .on_long = "error"}); });
  EXPECT_NE(message.find("(chat.jsonl:"), std::string::npos) << message;
  EXPECT_NE(message.find("more than sequence_length 300; raise data.sequence_length"), std::string::npos)
      << message;
}

TEST_F(DataLoaderTest, RefusesWhatCannotBeTrained) {
  const std::string none = testing::message_of([&] { open({.sequence_length = 5}); });
  EXPECT_NE(none.find("no sample is usable: all 120 are longer than data.sequence_length 5"),
            std::string::npos)
      << none;
  const std::string cut = testing::message_of([&] { open({.sequence_length = 2, .on_long = "truncate"}); });
  EXPECT_NE(cut.find("longer than data.sequence_length 2 and have no target of the loss before it"),
            std::string::npos)
      << cut;
  EXPECT_EQ(cut.find("--on-long"), std::string::npos) << cut;
  const std::string split = testing::message_of([&] { open({.validation_fraction = 0.999}); });
  EXPECT_NE(split.find("of 120 samples none is left for training: data.validation_fraction 0.999"),
            std::string::npos)
      << split;
  const std::string ranks = testing::message_of([&] { open({.sequence_length = 100'000, .world = 8}); });
  EXPECT_NE(ranks.find("fill 1 rows, fewer than the 8 data-parallel ranks"), std::string::npos) << ranks;
  const std::string option = testing::message_of([&] { open({.on_long = "cut"}); });
  EXPECT_NE(option.find("on_long is cut, should be drop, truncate or error"), std::string::npos) << option;
}

TEST_F(DataLoaderTest, ValidationPartIsWhatTheOthersLeave) {
  LoaderOptions options{.seed = 2, .shuffle = false, .validation_fraction = 0.1};
  DataLoader train = open(options);
  options.validation_part = true;
  DataLoader validation = open(options);
  EXPECT_EQ(validation.num_samples(), 12);
  std::map<std::int64_t, int> seen;
  for (DataLoader* loader : {&train, &validation}) {
    while (loader->epoch() < 1) {
      for (const std::int64_t id : loader->next().sample_ids) {
        ++seen[id];
      }
    }
  }
  EXPECT_EQ(seen.size(), samples_.size());
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 1; }));
}

TEST_F(DataLoaderTest, CountsSupervisedTokens) {
  DataLoader loader = open({});
  std::int64_t supervised = 0;
  for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b) {
    supervised += loader.next().supervised_tokens;
  }
  EXPECT_EQ(loader.supervised_tokens_per_epoch(), supervised);
  EXPECT_GT(loader.fill_rate(), 0.9);
}

TEST(DataLoader, BatchWithoutTargetsIsLegal) {
  TemporaryFolder root;
  testing::write_token_folder(root / "d", {{{1, 2, 3}, {0, 0, 0}}, {{4}, {1}}});
  DataLoader loader({root / "d"}, {.sequence_length = 4, .shuffle = false}, 10);
  const Batch batch = loader.next();
  EXPECT_EQ(batch.supervised_tokens, 0);
  EXPECT_EQ(batch.tokens, (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(batch.labels, (std::vector<std::int64_t>(4, -100)));
}

// A folder that `phalanx prepare` wrote, named by PHALANX_TEST_TOKEN_FOLDER; without it one of this test's own.
TEST(PreparedFolder, RowsAreFullAndEachSampleComesOnce) {
  constexpr std::int64_t kLength = 4096;
  TemporaryFolder root;
  const char* named = std::getenv("PHALANX_TEST_TOKEN_FOLDER");
  const std::string folder = named != nullptr ? named : root / "d";
  if (named == nullptr) {
    testing::write_token_folder(folder,
                                testing::make_samples(testing::lengths_like(testing::kGsm8kQuantiles, 7473)));
  }
  std::cout << "reading " << folder << "\n";
  DataLoader loader({folder}, {.sequence_length = kLength}, 2000);
  std::set<std::int64_t> seen;
  std::vector<std::int64_t> used;
  while (loader.epoch() < 1) {
    const Batch batch = loader.next();
    used.push_back(static_cast<std::int64_t>(batch.tokens.size()));
    for (const std::int64_t id : batch.sample_ids) {
      EXPECT_TRUE(seen.insert(id).second) << id;
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), loader.num_samples());
  // No packing has fewer rows; and what is missing to full ones lies in the last to be filled.
  EXPECT_EQ(loader.num_rows(), (loader.tokens_per_epoch() + kLength - 1) / kLength);
  const std::int64_t rest = *std::min_element(used.begin(), used.end());
  const double fill = static_cast<double>(loader.tokens_per_epoch() - rest) /
                      static_cast<double>((loader.num_rows() - 1) * kLength);
  EXPECT_GE(fill, 0.995);
  EXPECT_GT(loader.supervised_tokens_per_epoch(), 0);
}

}  // namespace
}  // namespace phalanx
