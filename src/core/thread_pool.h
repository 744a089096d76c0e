// A fixed set of threads for loops whose turns do not depend on each other.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace phalanx {

class ThreadPool {
 public:
  // `threads` work at a time, the calling thread among them: 1 starts none. 0 means one per processor.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(0) ... body(count - 1), each once, started in this order, and returns when all have ended.
  // After an exception no further turn is started, and the first one is thrown here. May be called inside a
  // body.
  void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

 private:
  struct Loop;
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Loop>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace phalanx
