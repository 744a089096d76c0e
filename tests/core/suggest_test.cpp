#include "core/suggest.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("lerning", "learning"), 1u);
  EXPECT_EQ(edit_distance("modle", "model"), 1u) << "neighbours swapped count once";
}

TEST(Suggest, FindsTheNearestFirstAndNothingFar) {
  const std::vector<std::string> names = {"optimizer.eps", "optimizer.learning_rate", "schedule.kind",
                                          "train.seed"};
  EXPECT_EQ(nearest_names("optimizer.lerning_rate", names),
            std::vector<std::string>{"optimizer.learning_rate"});
  EXPECT_EQ(nearest_names("learning_rate", names), std::vector<std::string>{"optimizer.learning_rate"});
  EXPECT_TRUE(nearest_names("banana", names).empty());
  EXPECT_EQ(did_you_mean("sed", names), "; did you mean 'train.seed'?");
  EXPECT_EQ(did_you_mean("banana", names), "");
}

}  // namespace
}  // namespace phalanx
