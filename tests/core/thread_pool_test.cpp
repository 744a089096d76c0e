#include "core/thread_pool.h"

#include "core/error.h"
#include "core/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <set>

namespace phalanx {
namespace {

TEST(ThreadPool, RunsEveryTurnOnceAndOnSeveralThreads) {
  ThreadPool pool(3);
  EXPECT_EQ(pool.size(), 3);
  std::vector<int> turns(1000, 0);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> arrived{0};
  pool.parallel_for(turns.size(), [&](std::size_t i) {
    ++turns[i];
    if (i < 3) {  // ends only when three threads are here at once
      ++arrived;
      while (arrived < 3) {
        std::this_thread::yield();
      }
    }
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(turns, std::vector<int>(1000, 1));
  EXPECT_EQ(threads.size(), 3u);
}

TEST(ThreadPool, OneThreadIsTheCaller) {
  ThreadPool pool(1);
  std::vector<std::size_t> order;
  pool.parallel_for(5, [&](std::size_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, ThrowsTheFirstErrorAndStartsNoMoreTurns) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int> turns{0};
    try {
      pool.parallel_for(100'000, [&](std::size_t i) {
        ++turns;
        PHALANX_CHECK(i != 10, IoError, "turn ", i);
      });
      FAIL();
    } catch (const IoError& error) {
      EXPECT_STREQ(error.what(), "turn 10");
    }
    EXPECT_LT(turns, 100'000);
    std::atomic<int> after{0};
    pool.parallel_for(10, [&](std::size_t) { ++after; });
    EXPECT_EQ(after, 10);
  }
}

TEST(ThreadPool, LoopsMayBeNested) {
  ThreadPool pool(2);
  std::atomic<int> turns{0};
  pool.parallel_for(8, [&](std::size_t) { pool.parallel_for(8, [&](std::size_t) { ++turns; }); });
  EXPECT_EQ(turns, 64);
}

TEST(Log, GoesToTheSinkAndNowhereWithoutOne) {
  std::vector<std::string> lines;
  LogSink before = set_log_sink([&](LogLevel level, std::string_view message) {
    lines.push_back(concat(log_level_name(level), ": ", message));
  });
  log_warning("total_size is ", 3);
  set_log_sink({});
  log_info("dropped");
  set_log_sink(std::move(before));
  EXPECT_EQ(lines, std::vector<std::string>{"warning: total_size is 3"});
}

}  // namespace
}  // namespace phalanx
