// The loader: sample k of the run is a pure function of (seed, k).
//
// Epoch e visits the samples in the order of a keyed permutation (a Feistel network with cycle walking), so
// there is no index file and resuming needs only `consumed_samples`.
// Batches are prepared by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"

namespace hearth {

// A bijection on [0, size), chosen by (seed, epoch).  O(1) in time and memory.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int rounds = 6;
  uint64_t encrypt(uint64_t value) const;

  int64_t size_;
  int half_bits_;
  uint64_t keys_[rounds];
};

// One microbatch in host memory, [rows, context] row-major.
struct HostBatch {
  int64_t first_sample = 0;  // the run's index of row 0; row r is sample first_sample + r
  int64_t rows = 0;
  std::vector<int32_t> tokens;   // inputs
  std::vector<int32_t> targets;  // -1 = not predicted
};

// Where sample k of the run lies: a dataset index, and the phase of the epoch (see dataset.h).  The first
// epoch has phase 0 and so covers every token once; later epochs draw theirs from (seed, epoch).
struct SamplePlace {
  int64_t index = 0;
  int64_t phase = 0;
};
SamplePlace sample_at(const Dataset& dataset, uint64_t seed, int64_t k);

class Loader {
 public:
  // Serves batches of `rows` samples: batch j covers samples first + j * stride .. + rows.  With one process
  // stride = rows.  Reading ahead (`ahead` batches) happens on a thread of the loader's own; errors there are
  // thrown by next().
  Loader(Dataset dataset, uint64_t seed, int64_t rows, int64_t first, int64_t stride, int ahead = 4);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  HostBatch next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads one batch without a loader: samples first .. first + rows of the run.
HostBatch read_batch(const Dataset& dataset, uint64_t seed, int64_t first, int64_t rows);
// Samples first .. first + rows of the dataset in its own order: evaluation.
HostBatch read_in_order(const Dataset& dataset, int64_t first, int64_t rows);

}  // namespace hearth
