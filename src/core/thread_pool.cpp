#include "core/thread_pool.h"

#include <algorithm>
#include <exception>

namespace phalanx {

// A helper may come to a loop late, after the caller has returned: then it finds no turn left and never
// touches `body`.
struct ThreadPool::Loop {
  std::size_t count;
  const std::function<void(std::size_t)>* body;
  std::mutex mutex;
  std::condition_variable idle;
  std::size_t next = 0;
  int running = 0;
  std::exception_ptr error;

  Loop(std::size_t turns, const std::function<void(std::size_t)>& f) : count(turns), body(&f) {}

  void run() {
    std::unique_lock lock(mutex);
    while (next < count) {
      const std::size_t turn = next++;
      ++running;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        (*body)(turn);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      --running;
      if (thrown) {
        next = count;
        error = error ? error : thrown;
      }
    }
    if (running == 0) {
      idle.notify_all();
    }
  }

  void wait() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return running == 0; });
    if (error) {
      std::rethrow_exception(error);
    }
  }
};

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) {
    threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) {
      return;
    }
    const std::shared_ptr<Loop> loop = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    loop->run();
    lock.lock();
  }
}

void ThreadPool::parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  if (count == 0) {
    return;
  }
  const auto loop = std::make_shared<Loop>(count, body);
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(queue_.end(), std::min(workers_.size(), count - 1), loop);
  }
  wake_.notify_all();
  loop->run();
  loop->wait();
}

}  // namespace phalanx
