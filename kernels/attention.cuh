// What the attention kernels share: tiles of heads in shared memory and products of a warp's rows with them.
//
// A warp owns rows of 16 (queries, or keys in the backward pass of keys and values) and meets tiles of the
// other kind.  Two products appear everywhere: S = A B^T, whose right side has its rows along the shared
// dimension D, and O += P B, whose left side P is an accumulator of the first product: the accumulators of
// two neighbouring 16x8 tiles are, rounded to bf16, the A fragment of one 16x16 tile,
// so P never leaves its registers.
#pragma once

#include <type_traits>

#include "kernels/attention.h"
#include "kernels/tiles.cuh"

namespace hearth::kernels::attention {

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr float ln_2 = 0.6931471805599453f;
// What a block may have on sm_86, sm_89 and sm_120.
constexpr int max_shared_bytes = 99 * 1024;

__device__ __forceinline__ float infinity() {
  return __uint_as_float(0x7f800000u);
}

// Rows of D elements followed by 16 unused bytes: a row is an odd number of 16-byte chunks for every D that
// is a multiple of 16, so 8 rows of a column of chunks lie in 8 different bank groups.
template <int rows_, int columns_>
struct PaddedTile {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int chunks = columns / chunk_elements;
  static constexpr int pitch_bytes = (chunks + 1) * 16;
  static constexpr int bytes = rows * pitch_bytes;
  static_assert(columns % 16 == 0);

  SharedAddress base;

  __device__ __forceinline__ SharedAddress at(int row, int chunk) const {
    return base + static_cast<SharedAddress>(row * pitch_bytes + chunk * 16);
  }
};

// The rows of one head from position `first` on; rows beyond the last position and columns beyond the head
// size become 0.
template <class Tile>
__device__ __forceinline__ void copy_rows_async(const Tile& tile, const bf16* head, int64_t token_stride,
                                                int64_t first, int64_t time, int head_size,
                                                Site site = Site::here()) {
  copy_tile_async<threads>(tile, head + first * token_stride, token_stride, time - first, head_size,
                           static_cast<int>(threadIdx.x), site);
}

template <class Element>
__device__ __forceinline__ Element* head_of(const HeadsView<Element>& view, int64_t b, int64_t h) {
  return view.data + b * view.batch_stride + h * view.head_stride;
}

// Which groups of 16 columns of a tile take part: all, or on the edge of the triangle only [begin, end).
template <bool edge>
struct Groups {
  int begin, end;
  __device__ __forceinline__ bool has(int group) const { return !edge || (group >= begin && group < end); }
};

// s[i] += A_i B^T for the row groups i of a warp; a(i, k, fragment) gives the 16x16 fragment of A_i at column
// k. B's rows are the columns of s.
template <int m_tiles, int n_tiles, class Tile, class LoadA, bool edge>
__device__ __forceinline__ void multiply_abt(float (&s)[m_tiles][n_tiles][4], const LoadA& a, const Tile& b,
                                             const Groups<edge>& groups) {
#pragma unroll
  for (int k = 0; k < Tile::columns; k += 16) {
    uint32_t fragment_a[m_tiles][4];
#pragma unroll
    for (int i = 0; i < m_tiles; ++i)
      a(i, k, fragment_a[i]);
#pragma unroll
    for (int group = 0; group < n_tiles / 2; ++group) {
      if (!groups.has(group)) continue;
      uint32_t fragment_b[4];
      load_b<true>(fragment_b, b, 16 * group, k);
#pragma unroll
      for (int i = 0; i < m_tiles; ++i) {
        ptx::mma_m16n8k16(s[i][2 * group], fragment_a[i], fragment_b[0], fragment_b[1]);
        ptx::mma_m16n8k16(s[i][2 * group + 1], fragment_a[i], fragment_b[2], fragment_b[3]);
      }
    }
  }
}

// o[i] += P_i B, with P_i rounded to bf16.  B's rows are the columns of p.
template <int m_tiles, int k_tiles, int n_tiles, class Tile, bool edge>
__device__ __forceinline__ void multiply_ab(float (&o)[m_tiles][n_tiles][4],
                                            const float (&p)[m_tiles][k_tiles][4], const Tile& b,
                                            const Groups<edge>& groups) {
  static_assert(n_tiles * 8 == Tile::columns && k_tiles * 8 == Tile::rows);
#pragma unroll
  for (int group = 0; group < k_tiles / 2; ++group) {
    if (!groups.has(group)) continue;
    uint32_t fragment_p[m_tiles][4];
#pragma unroll
    for (int i = 0; i < m_tiles; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&pair)[4] = p[i][2 * group + r / 2];
        fragment_p[i][r] = ptx::cvt_bf16x2(pair[2 * (r % 2)], pair[2 * (r % 2) + 1]);
      }
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
      uint32_t fragment_b[4];
      load_b<false>(fragment_b, b, 8 * n, 16 * group);
#pragma unroll
      for (int i = 0; i < m_tiles; ++i) {
        ptx::mma_m16n8k16(o[i][n], fragment_p[i], fragment_b[0], fragment_b[1]);
        ptx::mma_m16n8k16(o[i][n + 1], fragment_p[i], fragment_b[2], fragment_b[3]);
      }
    }
  }
}

// Writes 16 rows of accumulators, times factor[0] (rows 0-7) and factor[1], to rows first .. first + 15 of a
// matrix, by way of rows tile_row .. of a tile that only this warp still uses, so that global memory is
// touched 16 bytes a thread.
template <int n_tiles, class Tile>
__device__ __forceinline__ void store_rows(const float (&acc)[n_tiles][4], const float (&factor)[2],
                                           const Tile& tile, int tile_row, bf16* to, int64_t stride,
                                           int64_t valid_rows, int valid_columns) {
  __syncwarp();  // the warp's reads of these rows are over
#pragma unroll
  for (int n = 0; n < n_tiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + accumulator_row(2 * half);
      const uint32_t pair =
          ptx::cvt_bf16x2(acc[n][2 * half] * factor[half], acc[n][2 * half + 1] * factor[half]);
      shared_store(tile.at(row, n) + static_cast<SharedAddress>(accumulator_column(0)) * 2, pair);
    }
  __syncwarp();  // the rows are complete
#pragma unroll
  for (int i = 0; i < 16 * Tile::chunks / warp_size; ++i) {
    const int index = i * warp_size + lane_index();
    const int row = index / Tile::chunks, chunk = index % Tile::chunks;
    if (row < valid_rows && chunk * chunk_elements < valid_columns)
      store16(to + row * stride + chunk * chunk_elements,
              shared_load<Vector<bf16>>(tile.at(tile_row + row, chunk)));
  }
}

// ---- host

template <class... Views>
void check_operands(const AttentionShape& s, const Views&... views) {
  check(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "attention: ", s.heads, " heads cannot share ",
        s.kv_heads);
  check(s.head_size > 0 && s.head_size % 8 == 0 && s.head_size <= max_attention_head_size,
        "attention: the head size must be a multiple of 8 up to ", max_attention_head_size, ", not ",
        s.head_size);
  const bool aligned = ((reinterpret_cast<uintptr_t>(views.data) % 16 == 0 && views.batch_stride % 8 == 0 &&
                         views.token_stride % 8 == 0 && views.head_stride % 8 == 0) &&
                        ...);
  check(aligned, "attention: operands must be aligned to 16 bytes, their strides multiples of 8");
}

// Calls function(D) with the smallest tile width D that holds a head.
template <class Function>
void with_tile_width(int64_t head_size, const Function& function) {
  if (head_size <= 16) return function(std::integral_constant<int, 16>{});
  if (head_size <= 32) return function(std::integral_constant<int, 32>{});
  if (head_size <= 64) return function(std::integral_constant<int, 64>{});
  if (head_size <= 80) return function(std::integral_constant<int, 80>{});
  if (head_size <= 96) return function(std::integral_constant<int, 96>{});
  return function(std::integral_constant<int, 128>{});
}

}  // namespace hearth::kernels::attention
