// The loader: keyed permutation, and a thread that reads batches ahead.
#include "data/loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/philox.h"

namespace hearth {

// A balanced Feistel network permutes [0, 4^half_bits), the smallest such range that holds [0, size); values
// outside [0, size) are fed back until one falls inside (cycle walking: Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002).  The range is below 4 * size, so fewer than four steps are expected.
Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(size), half_bits_(1) {
  check(size > 0, "a permutation of ", size, " elements");
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size)
    ++half_bits_;
  const PhiloxKey key = random_key(seed, RandomDomain::permutation, epoch);
  for (int round = 0; round < rounds; ++round) {
    const PhiloxBlock block = random_block(key, static_cast<uint64_t>(round));
    keys_[round] = (uint64_t{block[1]} << 32) | block[0];
  }
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t mixed = left ^ (mix64(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t index) const {
  check(index >= 0 && index < size_, "index ", index, " of a permutation of ", size_);
  uint64_t value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

namespace {

int64_t phase_of_epoch(int64_t context, uint64_t seed, uint64_t epoch) {
  if (epoch == 0) return 0;
  // Blocks 0 .. 5 of this stream are the permutation's keys.
  const PhiloxBlock block = random_block(random_key(seed, RandomDomain::permutation, epoch), 6);
  return static_cast<int64_t>(block[0] % static_cast<uint64_t>(context));
}

}  // namespace

SamplePlace sample_at(const Dataset& dataset, uint64_t seed, int64_t k) {
  check(k >= 0, "sample ", k);
  const uint64_t epoch = static_cast<uint64_t>(k / dataset.samples());
  const Permutation permutation(dataset.samples(), seed, epoch);
  return {permutation(k % dataset.samples()), phase_of_epoch(dataset.context(), seed, epoch)};
}

namespace {

HostBatch empty_batch(const Dataset& dataset, int64_t first, int64_t rows) {
  HostBatch batch;
  batch.first_sample = first;
  batch.rows = rows;
  batch.tokens.resize(static_cast<size_t>(rows * dataset.context()));
  batch.targets.resize(batch.tokens.size());
  return batch;
}

void read_row(const Dataset& dataset, HostBatch& batch, int64_t row, const SamplePlace& place) {
  const int64_t context = dataset.context();
  dataset.read_sample(place.index, std::span(batch.tokens).subspan(row * context, context),
                      std::span(batch.targets).subspan(row * context, context), place.phase);
}

}  // namespace

HostBatch read_batch(const Dataset& dataset, uint64_t seed, int64_t first, int64_t rows) {
  HostBatch batch = empty_batch(dataset, first, rows);
  for (int64_t r = 0; r < rows; ++r)
    read_row(dataset, batch, r, sample_at(dataset, seed, first + r));
  return batch;
}

HostBatch read_in_order(const Dataset& dataset, int64_t first, int64_t rows) {
  HostBatch batch = empty_batch(dataset, first, rows);
  for (int64_t r = 0; r < rows; ++r)
    read_row(dataset, batch, r, {first + r, 0});
  return batch;
}

// The queue between the reading thread and next().
struct Loader::State {
  State(Dataset data, uint64_t seed, int64_t rows, int64_t first, int64_t stride, size_t ahead)
      : dataset(std::move(data)), seed(seed), rows(rows), stride(stride), next_first(first), ahead(ahead) {}

  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || ready.size() < ahead; });
      if (stopping) return;
      lock.unlock();
      HostBatch batch;
      std::exception_ptr failure;
      try {
        batch = read_batch(dataset, seed, next_first, rows);
      } catch (...) {
        failure = std::current_exception();
      }
      next_first += stride;
      lock.lock();
      error = failure;
      if (!error) ready.push_back(std::move(batch));
      changed.notify_all();
      if (error) return;
    }
  }

  const Dataset dataset;
  const uint64_t seed;
  const int64_t rows;
  const int64_t stride;
  int64_t next_first;  // used by the reading thread only
  const size_t ahead;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<HostBatch> ready;
  std::exception_ptr error;
  bool stopping = false;

  std::thread reader;
};

Loader::Loader(Dataset dataset, uint64_t seed, int64_t rows, int64_t first, int64_t stride, int ahead) {
  check(rows > 0 && stride >= rows && first >= 0 && ahead > 0, "loader of ", rows, " rows from ", first,
        ", stride ", stride, ", ", ahead, " ahead");
  state_ = std::make_unique<State>(std::move(dataset), seed, rows, first, stride, static_cast<size_t>(ahead));
  state_->reader = std::thread([state = state_.get()] { state->read_ahead(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->reader.join();
}

HostBatch Loader::next() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return !state_->ready.empty() || state_->error; });
  if (state_->ready.empty()) std::rethrow_exception(state_->error);
  HostBatch batch = std::move(state_->ready.front());
  state_->ready.pop_front();
  state_->changed.notify_all();
  return batch;
}

}  // namespace hearth
