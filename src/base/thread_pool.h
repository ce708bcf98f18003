// A pool of worker threads for the CPU backend.
//
// Work is a fixed list of tasks; which thread runs which task never changes a result, so every operation that
// writes one task's output from one task's input is independent of the thread count.  Workers spin briefly
// and then sleep, so that an idle pool costs nothing and busy neighbours are not starved (an OpenMP runtime
// spins).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hearth {

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 means no workers.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Runs task(i) for i in [0, count), on all threads, and returns when all are done.  The first exception
  // thrown by a task is rethrown here.  Not reentrant: a task must not call run().
  void run(int64_t count, const std::function<void(int64_t task)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The number of cores that this process may use (affinity and cgroup quota respected), at least 1.
int available_cores();

}  // namespace hearth
