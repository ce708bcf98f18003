// The thread pool: every task once, everything visible afterwards, failures, and quiet workers.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace hearth {
namespace {

using namespace std::chrono_literals;

class ThreadPools : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPools, testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param) + "_threads"; });

TEST_P(ThreadPools, EveryTaskRunsOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 3, 5, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    pool.run(count, [&](int64_t i) { ++runs.at(static_cast<size_t>(i)); });
    for (const auto& times : runs)
      EXPECT_EQ(times, 1) << "of " << count;
  }
}

TEST_P(ThreadPools, ManySmallRunsSeeEachOthersResults) {
  ThreadPool pool(GetParam());
  // Plain memory: each region reads what other threads wrote in the one before.
  std::vector<int64_t> values(4, 0);
  std::vector<int64_t> next(4, 0);
  for (int round = 0; round < 20000; ++round) {
    pool.run(4, [&](int64_t i) { next[i] = values[(i + 1) % 4] + 1; });
    std::swap(values, next);
  }
  EXPECT_EQ(values, (std::vector<int64_t>(4, 20000)));
}

TEST_P(ThreadPools, RunsAfterPausesWakeTheWorkers) {
  ThreadPool pool(GetParam());
  std::atomic<int> runs = 0;
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(round % 2 ? 500us : 5us);  // asleep, and on the edge of it
    pool.run(8, [&](int64_t) { ++runs; });
  }
  EXPECT_EQ(runs, 50 * 8);
}

TEST_P(ThreadPools, LongTasksAreWaitedFor) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> finished = 0;
    pool.run(GetParam(), [&](int64_t i) {
      std::this_thread::sleep_for(i * 2ms);
      ++finished;
    });
    EXPECT_EQ(finished, GetParam());
  }
}

TEST_P(ThreadPools, ExceptionsReachTheCallerAndThePoolLivesOn) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool.run(100,
                          [&](int64_t i) {
                            if (i % 7 == round % 7) throw std::runtime_error("planned");
                          }),
                 std::runtime_error);
    std::atomic<int> runs = 0;
    pool.run(100, [&](int64_t) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST_P(ThreadPools, AnExceptionEndsTheHandingOutOfTasks) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> runs = 0;
  EXPECT_THROW(pool.run(int64_t{1} << 60,
                        [&](int64_t i) {
                          ++runs;
                          if (i == 10) throw std::runtime_error("planned");
                        }),
               std::runtime_error);
  EXPECT_GE(runs, 11);
}

// What one thread of a pool looks like from inside.
struct ThreadFacts {
  std::thread::id id;
  int openmp_threads;
  bool interrupt_blocked;
};

// A pool's threads; each waits in its task for the others, so that every thread takes exactly one.
std::vector<ThreadFacts> facts_of_all_threads(ThreadPool& pool) {
  std::vector<ThreadFacts> facts(static_cast<size_t>(pool.threads()));
  std::atomic<int> arrived = 0;
  pool.run(pool.threads(), [&](int64_t i) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    facts[static_cast<size_t>(i)] = {std::this_thread::get_id(), omp_get_max_threads(),
                                     sigismember(&blocked, SIGINT) == 1};
    ++arrived;
    while (arrived < pool.threads())
      std::this_thread::yield();
  });
  return facts;
}

TEST_P(ThreadPools, AllThreadsTakePartWithOneOpenmpThreadAndOnlyTheCallerTakesSignals) {
  omp_set_num_threads(3);
  ThreadPool pool(GetParam());
  EXPECT_EQ(omp_get_max_threads(), 1);
  std::set<std::thread::id> ids;
  for (const ThreadFacts& facts : facts_of_all_threads(pool)) {
    ids.insert(facts.id);
    EXPECT_EQ(facts.openmp_threads, 1);
    EXPECT_EQ(facts.interrupt_blocked, facts.id != std::this_thread::get_id());
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(GetParam()));
}

TEST_P(ThreadPools, RunsFromAnotherThreadThanItsMaker) {
  ThreadPool pool(GetParam());
  int openmp_threads = 0;
  std::thread([&] {
    omp_set_num_threads(3);
    for (const ThreadFacts& facts : facts_of_all_threads(pool))
      if (facts.id == std::this_thread::get_id()) openmp_threads = facts.openmp_threads;
  }).join();
  EXPECT_EQ(openmp_threads, 1);
}

double process_cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST_P(ThreadPools, IdleWorkersSleep) {
  ThreadPool pool(GetParam());
  pool.run(100, [](int64_t) {});
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(100ms);
  EXPECT_LT(process_cpu_seconds() - before, 0.02);
}

TEST_P(ThreadPools, WaitingForALongTaskSleeps) {
  ThreadPool pool(GetParam());
  const double before = process_cpu_seconds();
  pool.run(GetParam(), [](int64_t) { std::this_thread::sleep_for(50ms); });
  std::atomic<bool> worker_has_one = false;
  pool.run(2, [&](int64_t) {
    if (!worker_has_one.exchange(true)) std::this_thread::sleep_for(100ms);
  });
  EXPECT_LT(process_cpu_seconds() - before, 0.03);
}

TEST_P(ThreadPools, StartingAndStoppingLeavesNothingBehind) {
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(GetParam());
    if (round % 2) pool.run(4, [](int64_t) {});
  }
}

TEST(ThreadPoolDeathTest, TasksMustNotCallRun) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.run(2, [&](int64_t) { pool.run(2, [](int64_t) {}); });
      },
      "called from a task");
}

}  // namespace
}  // namespace hearth
