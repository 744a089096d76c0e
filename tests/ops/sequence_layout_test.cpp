#include "ops/sequence_layout.h"

#include "core/error.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

TEST(SequenceLayout, CountsPositionsInEachDocument) {
  const SequenceLayout layout = layout_from_lengths({3, 1, 2});
  EXPECT_EQ(layout.cu_seqlens, (std::vector<std::int64_t>{0, 3, 4, 6}));
  EXPECT_EQ(layout.max_length, 3);
  EXPECT_EQ(layout.tokens(), 6);
  const auto* positions = layout.position_ids.const_data_ptr<std::int64_t>();
  EXPECT_EQ(std::vector<std::int64_t>(positions, positions + 6),
            (std::vector<std::int64_t>{0, 1, 2, 0, 0, 1}));
}

TEST(SequenceLayout, NoDocuments) { EXPECT_EQ(layout_from_lengths({}).tokens(), 0); }

TEST(SequenceLayout, RefusesAnEmptyDocumentByItsNumber) {
  try {
    layout_from_lengths({3, 0});
    FAIL() << "accepted a document of length 0";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("document 1 has length 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace phalanx
