// The dropout mask of device/dropout.h, made 32 Philox blocks at a time: equal bits, in vector
// registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/philox.h"
#include "device/ops.h"

namespace hearth::cpu {

// The mask of one [N, C] operand; plain data, so that kernels can capture it by value.
struct DropoutRows {
  static constexpr int blocks = 32;         // made at once
  static constexpr int batch = 4 * blocks;  // elements of a batch

  bool active = false;
  PhiloxKey key;
  uint32_t threshold = 0;
  float scale = 1;
  int64_t first_sample = 0;
  int64_t time = 1;
  int64_t first_row = 0;
  int64_t channels = 0;

  // `step` is read only when the probability is above 0.
  DropoutRows(const Dropout& dropout, const StepParams* step, int64_t C)
      : active(dropout.probability > 0), channels(C) {
    if (!active) return;
    check(step != nullptr, "dropout needs the step's scalars: call set_step_params first");
    check(dropout.probability < 1, "dropout of ", dropout.probability, " keeps nothing");
    check(dropout.time > 0, "dropout over samples of ", dropout.time, " rows");
    key = random_key(dropout.seed, RandomDomain::dropout, dropout.stream());
    threshold = dropout_threshold(dropout.probability);
    scale = static_cast<float>(1 / (1 - dropout.probability));
    first_sample = step->first_sample + dropout.sample_offset;
    time = dropout.time;
    first_row = dropout.first_row;
  }

  // The factors (0 or scale) of elements 4 * block ... of a sample.
  [[gnu::always_inline]] inline void make_batch(uint64_t block, uint64_t sample, float* out) const {
    // Words of 32 bits in lanes of 64, which is what the vector multiplication reads and writes.
    constexpr uint64_t low = 0xffffffffu;
    uint64_t c0[blocks], c1[blocks], c2[blocks], c3[blocks];
    for (int i = 0; i < blocks; ++i) {
      c0[i] = (block + i) & low;
      c1[i] = (block + i) >> 32;
      c2[i] = sample & low;
      c3[i] = sample >> 32;
    }
    PhiloxKey k = key;
    for (int round = 0; round < 10; ++round) {
#pragma omp simd
      for (int i = 0; i < blocks; ++i) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
        const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
        c0[i] = (p1 >> 32) ^ c1[i] ^ k.lo;
        c2[i] = (p0 >> 32) ^ c3[i] ^ k.hi;
        c1[i] = p1 & low;
        c3[i] = p0 & low;
      }
      k.lo += 0x9E3779B9u;
      k.hi += 0xBB67AE85u;
    }
#pragma omp simd
    for (int i = 0; i < blocks; ++i) {
      out[4 * i] = c0[i] >= threshold ? scale : 0.0f;
      out[4 * i + 1] = c1[i] >= threshold ? scale : 0.0f;
      out[4 * i + 2] = c2[i] >= threshold ? scale : 0.0f;
      out[4 * i + 3] = c3[i] >= threshold ? scale : 0.0f;
    }
  }

  // What the elements of `row` are multiplied by; out has C places.
  [[gnu::always_inline]] inline void factors(int64_t row, float* out) const {
    const int64_t of_batch = first_row + row;
    const int64_t first = of_batch % time * channels;
    const uint64_t sample = static_cast<uint64_t>(first_sample + of_batch / time);
    float made[batch];
    for (int64_t done = 0; done < channels;) {
      const int64_t element = first + done;
      const int64_t skip = element % 4;
      const int64_t take = std::min<int64_t>(batch - skip, channels - done);
      make_batch(static_cast<uint64_t>(element / 4), sample, made);
      for (int64_t i = 0; i < take; ++i)
        out[done + i] = made[skip + i];
      done += take;
    }
  }
};

}  // namespace hearth::cpu
