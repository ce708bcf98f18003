// The dropout mask of device/ops.h on the GPU: the same bits as src/device/dropout.h and base/philox.h.
//
// Element (t, channel) of sample s is element e = t*C + channel of instance s; Philox block e / 4 gives the
// bits of four elements.  Kernels ask for 8 neighbouring channels: two blocks, about 240 integer
// instructions.
#pragma once

#include "base/philox.h"
#include "device/ops.h"
#include "kernels/rows.cuh"

namespace hearth::kernels {

// Philox 4x32-10 (Salmon et al. 2011), in place.
__device__ __forceinline__ void philox(uint32_t (&counter)[4], uint32_t key_lo, uint32_t key_hi) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t hi0 = __umulhi(0xD2511F53u, counter[0]), lo0 = 0xD2511F53u * counter[0];
    const uint32_t hi1 = __umulhi(0xCD9E8D57u, counter[2]), lo1 = 0xCD9E8D57u * counter[2];
    counter[0] = hi1 ^ counter[1] ^ key_lo;
    counter[1] = lo1;
    counter[2] = hi0 ^ counter[3] ^ key_hi;
    counter[3] = lo0;
    key_lo += 0x9E3779B9u;
    key_hi += 0xBB67AE85u;
  }
}

// What a kernel needs of a Dropout.  Made on the host by dropout_mask().
struct DropoutMask {
  const StepParams* step;  // null: no dropout
  uint32_t key_lo, key_hi;
  uint32_t threshold;
  float scale;
  int64_t sample_offset, time, first_row;
};

// The mask of one row.
struct RowMask {
  bool active;
  uint32_t key_lo, key_hi;
  uint32_t threshold;
  float scale;
  uint64_t sample;
  uint64_t first_block;  // of channel 0

  // x[i] *= 0 or scale, for channels `channel` (a multiple of 8) and the 7 after it.
  __device__ __forceinline__ void apply(float (&x)[pack], int channel) const {
    if (!active) return;
#pragma unroll
    for (int half = 0; half < pack; half += 4) {
      const uint64_t block = first_block + static_cast<uint64_t>((channel + half) / 4);
      uint32_t bits[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                          static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)};
      philox(bits, key_lo, key_hi);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[half + i] *= bits[i] >= threshold ? scale : 0.0f;
    }
  }
};

__device__ __forceinline__ RowMask mask_of_row(const DropoutMask& mask, int64_t row, int64_t channels) {
  RowMask m = {};
  m.active = mask.step != nullptr;
  if (!m.active) return m;
  m.key_lo = mask.key_lo;
  m.key_hi = mask.key_hi;
  m.threshold = mask.threshold;
  m.scale = mask.scale;
  row += mask.first_row;
  const int64_t sample = row / mask.time;
  m.sample = static_cast<uint64_t>(mask.step->first_sample + mask.sample_offset + sample);
  m.first_block = static_cast<uint64_t>((row - sample * mask.time) * channels / 4);
  return m;
}

// ---- host.  `step` is device memory; it is read only when the probability is above 0.
inline DropoutMask dropout_mask(const Dropout& dropout, const StepParams* step) {
  DropoutMask mask = {};
  if (dropout.probability == 0) return mask;
  check(dropout.probability > 0 && dropout.probability < 1, "dropout of ", dropout.probability);
  check(step != nullptr, "dropout needs the step's scalars: call set_step_params first");
  check(dropout.time > 0, "dropout over samples of ", dropout.time, " rows");
  const PhiloxKey key = random_key(dropout.seed, RandomDomain::dropout, dropout.stream());
  mask.step = step;
  mask.key_lo = key.lo;
  mask.key_hi = key.hi;
  mask.threshold = dropout_threshold(dropout.probability);
  mask.scale = static_cast<float>(1 / (1 - dropout.probability));
  mask.sample_offset = dropout.sample_offset;
  mask.time = dropout.time;
  mask.first_row = dropout.first_row;
  return mask;
}

}  // namespace hearth::kernels
