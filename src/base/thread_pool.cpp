// The thread pool: a list of tasks handed out by one atomic counter.
//
// A region is one call of run().  The caller opens the gate, takes part in the work, closes the gate when no
// task is left, and waits only for the workers that came in.  A worker that wakes too late finds the gate
// closed and sleeps on: a short region never waits for a sleeping thread.
#include "base/thread_pool.h"

#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hearth {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

// Sleeps while the word holds `value`; may return early.
void futex_wait(Word& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(Word& word, int threads) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// How many pauses fill the time that a thread spins before it sleeps.  One pause takes from 10 to 140 cycles,
// depending on the processor, so it is measured; the shortest of three attempts leaves out a preemption.
int measure_spins() {
  using Clock = std::chrono::steady_clock;
  constexpr double spin_nanoseconds = 4000;  // about what a sleep and a wake-up cost
  constexpr int pauses = 100;
  double shortest = 1e9;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto start = Clock::now();
    for (int i = 0; i < pauses; ++i)
      pause_briefly();
    shortest = std::min(shortest, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  return static_cast<int>(std::clamp(spin_nanoseconds * pauses / std::max(shortest, 1.0), 10.0, 2000.0));
}

// Blocks every signal in this thread, and so in the threads that it starts, until the end of the scope:
// signals are the main thread's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// oneDNN asks OpenMP how many threads to use; the setting belongs to the calling thread.
void keep_openmp_single_threaded() {
  omp_set_num_threads(1);
}

constexpr uint32_t gate_open = 1u << 31;

}  // namespace

struct ThreadPool::State {
  // Written by the caller before it opens the gate, read by workers that came through it.
  const std::function<void(int64_t)>* task = nullptr;
  int64_t count = 0;
  int spins = 0;
  std::vector<std::thread> workers;

  // gate_open while a region takes workers in, plus the number of workers inside.
  alignas(64) Word gate{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> busy{false};
  // Counts regions; workers sleep on it.
  alignas(64) Word epoch{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  // The next task to hand out.
  alignas(64) std::atomic<int64_t> next{0};
  // Set by the first task that throws; read by the caller when all are out.
  std::atomic<bool> failed{false};
  std::exception_ptr failure;

  void work();
  void run_region(int64_t tasks, const std::function<void(int64_t)>& function);
  void run_tasks();
  bool enter();
  void leave();
  uint32_t wait_for_epoch_after(uint32_t seen);
  void start_epoch(int wanted);
  void wait_until_empty();
  void stop_workers();
};

void ThreadPool::State::run_tasks() {
  for (;;) {
    const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    try {
      (*task)(i);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
      next.store(count, std::memory_order_relaxed);  // hand out no more
    }
  }
}

// Joins the open region; false when the gate is closed.
bool ThreadPool::State::enter() {
  uint32_t seen = gate.load(std::memory_order_relaxed);
  while (seen & gate_open) {
    // Acquire: the task and its count are visible.
    if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return true;
  }
  return false;
}

void ThreadPool::State::leave() {
  // Sequentially consistent against wait_until_empty():
  // either the caller sees the new gate or we see it asleep.
  const uint32_t before = gate.fetch_sub(1);
  if (before == 1 && caller_sleeps.load()) futex_wake(gate, 1);
}

uint32_t ThreadPool::State::wait_for_epoch_after(uint32_t seen) {
  for (int i = 0; i < spins; ++i) {
    const uint32_t now = epoch.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause_briefly();
  }
  // Sequentially consistent against start_epoch(): either we see the new epoch or it sees a sleeper.
  sleepers.fetch_add(1);
  uint32_t now;
  while ((now = epoch.load()) == seen)
    futex_wait(epoch, seen);
  sleepers.fetch_sub(1);
  return now;
}

void ThreadPool::State::start_epoch(int wanted) {
  epoch.fetch_add(1);
  if (sleepers.load() > 0) futex_wake(epoch, wanted);
}

void ThreadPool::State::wait_until_empty() {
  for (int i = 0; i < spins; ++i) {
    // Acquire: what the workers wrote is visible.
    if (gate.load(std::memory_order_acquire) == 0) return;
    pause_briefly();
  }
  caller_sleeps.store(true);
  for (uint32_t inside; (inside = gate.load()) != 0;)
    futex_wait(gate, inside);
  caller_sleeps.store(false);
}

void ThreadPool::State::work() {
  pthread_setname_np(pthread_self(), "hearth-worker");
  keep_openmp_single_threaded();
  for (uint32_t seen = 0;;) {
    seen = wait_for_epoch_after(seen);
    if (stop.load()) return;
    if (!enter()) continue;
    run_tasks();
    leave();
  }
}

void ThreadPool::State::run_region(int64_t tasks, const std::function<void(int64_t)>& function) {
  check(!busy.exchange(true), "ThreadPool::run() was called from a task or from two threads at once");
  task = &function;
  count = tasks;
  next.store(0, std::memory_order_relaxed);
  gate.store(gate_open, std::memory_order_release);
  start_epoch(static_cast<int>(std::min<int64_t>(tasks - 1, static_cast<int64_t>(workers.size()))));
  run_tasks();
  gate.fetch_and(~gate_open);
  wait_until_empty();
  std::exception_ptr thrown;
  if (failed.load()) {
    thrown = std::exchange(failure, nullptr);
    failed.store(false);
  }
  busy.store(false);
  if (thrown) std::rethrow_exception(thrown);
}

void ThreadPool::State::stop_workers() {
  stop.store(true);
  start_epoch(INT_MAX);
  for (std::thread& worker : workers)
    worker.join();
  workers.clear();
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  check(threads >= 1, "a pool of ", threads, " threads");
  keep_openmp_single_threaded();
  if (threads == 1) return;
  state_->spins = measure_spins();
  state_->workers.reserve(static_cast<size_t>(threads - 1));
  const SignalsBlocked while_starting;
  try {
    for (int i = 1; i < threads; ++i)
      state_->workers.emplace_back([state = state_.get()] { state->work(); });
  } catch (const std::system_error& error) {
    const size_t started = state_->workers.size() + 1;
    state_->stop_workers();
    fail_usage("cannot start ", threads, " threads: the system allowed ", started, " (", error.what(),
               "); lower device.threads or raise the limit on processes (ulimit -u)");
  }
}

ThreadPool::~ThreadPool() {
  if (!state_->workers.empty()) state_->stop_workers();
}

int ThreadPool::threads() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t task)>& task) {
  keep_openmp_single_threaded();
  if (count > 1 && !state_->workers.empty()) {
    state_->run_region(count, task);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    task(i);
}

}  // namespace hearth
