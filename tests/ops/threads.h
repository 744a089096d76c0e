// Results must not depend on the number of threads, to the bit.
#pragma once
#include "ops/block.h"

#include <ATen/Parallel.h>

#include <gtest/gtest.h>

#include <functional>

namespace phalanx::testing {

// Runs `body` on one, two and five threads and compares every tensor bit for bit.
inline void expect_same_on_any_threads(const std::function<Tensors()>& body) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors expected = body();
  for (const int threads : {2, 5}) {
    at::set_num_threads(threads);
    const Tensors results = body();
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].equal(expected[i])) << "tensor " << i << " on " << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

}  // namespace phalanx::testing
