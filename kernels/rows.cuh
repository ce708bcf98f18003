// What kernels that work row by row share: a warp per row, 8 bf16 channels per lane and load.
#pragma once

#include "kernels/ptx.cuh"
#include "kernels/rows.h"

namespace hearth::kernels {

// Channels in one 16-byte vector.
constexpr int pack = Vector<bf16>::size;
using Pack = Vector<bf16>;
// Vectors of one operand that a lane loads before it uses the first, so that enough bytes are in flight.
constexpr int in_flight = 4;

// Warps per block of the kernels that give each row a warp.
constexpr int row_warps = 8;
constexpr int row_threads = row_warps * warp_size;

__device__ __forceinline__ void widen(const Pack& from, float (&x)[pack]) {
#pragma unroll
  for (int i = 0; i < pack; ++i)
    x[i] = to_float(from[i]);
}
__device__ __forceinline__ Pack rounded(const float (&x)[pack]) {
  Pack to;
#pragma unroll
  for (int i = 0; i < pack; i += 2) {
    const uint32_t pair = ptx::cvt_bf16x2(x[i], x[i + 1]);
    to[i].bits = static_cast<uint16_t>(pair);
    to[i + 1].bits = static_cast<uint16_t>(pair >> 16);
  }
  return to;
}

// The row of this warp.
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * (blockDim.x / warp_size) + warp_index();
}

// ---- host

inline void check_channels(int64_t channels) {
  check(channels > 0 && channels % pack == 0 && channels < (int64_t{1} << 30), channels,
        " channels: a positive multiple of 8 is needed");
}
template <class T>
void check_rows(const char* name, const Rows<T>& rows, int64_t channels) {
  check(rows.data != nullptr, name, " is absent");
  check_aligned(name, rows.data);
  check(rows.stride >= channels && rows.stride % pack == 0, name, " has a row stride of ", rows.stride,
        " for ", channels, " channels: a multiple of 8 is needed");
}
template <class T>
void check_rows_if_present(const char* name, const Rows<T>& rows, int64_t channels) {
  if (rows) check_rows(name, rows, channels);
}

}  // namespace hearth::kernels
