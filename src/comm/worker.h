// A thread that runs tasks in the order in which they were given.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace hearth {

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  // Finishes the tasks that were given.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The future becomes ready when the task has run, and carries its exception.
  std::shared_future<void> give(std::function<void()> task) {
    std::packaged_task<void()> packaged(std::move(task));
    std::shared_future<void> done = packaged.get_future().share();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(packaged));
    }
    changed_.notify_one();
    return done;
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::packaged_task<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace hearth
