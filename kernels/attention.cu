// Causal attention, forward (FlashAttention-2, Dao 2023), with mma.sync.
//
//   S[i, j] = q[i] . k[j]                 j <= i
//   out[i]  = sum_j exp(S[i, j] / sqrt(D)) v[j] / sum_j exp(S[i, j] / sqrt(D))
//   lse[i]  = log sum_j exp(S[i, j] / sqrt(D))
//
// The keys come in tiles of 64.  For every row a warp keeps m = max of S so far, l = sum of exp relative to
// m, and o = the weighted sum of v relative to m; when m grows, l and o are scaled down (the online softmax,
// Milakov and Gimelshein 2018).  exp(x / sqrt(D)) is computed as 2^(c x), c = log2(e) / sqrt(D).  P = exp(..)
// is rounded to bf16 for the product with v; l sums it unrounded.
//
// q, k, v are read in place from their fused activation, and out is written as [B, T, H, D].
//
// Launch.  One block of 4 warps per head of a sequence and 128 queries (64 when D > 64); the blocks of one
// head are neighbours, so that its keys stay in the L2 cache, the longest first.  A warp owns 32 (16)
// queries: 32, so that each fragment of keys and values is used twice and shared memory keeps up with the
// tensor cores.
//
// Shared memory, rows padded by 16 bytes; ' is the next tile, in flight:
//
//   Q rows x D | K 64 x D | V 64 x D | K' 64 x D | V' 64 x D        55 KiB for D = 64, 85 KiB for D = 128
//
// Registers (D = 64): 64 S + 64 o + fragments; those of q are read again for every tile, which costs shared
// memory a quarter more reads and leaves registers to hide latency with.
//
// Work: 2 D T^2 FLOP per head (4 D for each pair i >= j).  Bytes: q, out, lse once, k and v once from memory.
#include "kernels/attention.cuh"

namespace hearth::kernels {
namespace {
using namespace attention;

constexpr int tile_keys = 64;
constexpr int key_groups = tile_keys / 16;

template <int D>
struct Layout {
  static constexpr int m_tiles = D <= 64 ? 2 : 1;
  static constexpr int warp_rows = 16 * m_tiles;
  static constexpr int rows = warps * warp_rows;
  using Queries = PaddedTile<rows, D>;
  using Keys = PaddedTile<tile_keys, D>;
  static constexpr int shared_bytes = Queries::bytes + 4 * Keys::bytes;
  static_assert(shared_bytes <= max_shared_bytes);
};

struct Problem {
  HeadsView<const bf16> q, k, v;
  HeadsView<bf16> out;
  float* lse;
  int64_t time, heads, group;  // group: query heads per key head
  int head_size;
  float c;  // log2(e) / sqrt(D)
};

// What a warp knows of its rows after some tiles of keys.  A lane has two rows of each group of 16, lane / 4
// and 8 more: `half` 0 and 1.
template <int D>
struct RowState {
  static constexpr int m_tiles = Layout<D>::m_tiles;
  float o[m_tiles][D / 8][4];  // sum of exp v, relative to m
  float m[m_tiles][2];         // the greatest S
  float l[m_tiles][2];         // sum of exp over this lane's columns; a row's four lanes are added at the end
};

// Takes one tile of keys in: S = q k^T, masked on the edge of the triangle; the new maxima, to which l and o
// are scaled; P = exp(S - m), in the registers of S; o += P v.  `offset` = first query of the warp - first
// key of the tile.
template <int D, bool edge>
__device__ __forceinline__ void attend(RowState<D>& r, const typename Layout<D>::Queries& q, int q_row,
                                       const PaddedTile<tile_keys, D>& k, const PaddedTile<tile_keys, D>& v,
                                       const Groups<edge>& groups, int offset, float c) {
  constexpr int m_tiles = RowState<D>::m_tiles;
  float s[m_tiles][2 * key_groups][4] = {};
  multiply_abt(
      s, [&](int i, int column, uint32_t(&a)[4]) { load_a<true>(a, q, q_row + 16 * i, column); }, k, groups);

#pragma unroll
  for (int i = 0; i < m_tiles; ++i) {
    float m[2] = {r.m[i][0], r.m[i][1]};
#pragma unroll
    for (int j = 0; j < 2 * key_groups; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (edge)
          if (8 * j + accumulator_column(e) > offset + 16 * i + accumulator_row(e)) s[i][j][e] = -infinity();
        m[e / 2] = Max{}(m[e / 2], s[i][j][e]);
      }
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      m[half] = group_reduce<4>(m[half], Max{});
      // The first tile of keys holds key 0, which every query may see, so m is finite from then on.
      const float shrink = ptx::ex2((r.m[i][half] - m[half]) * c);
      r.m[i][half] = m[half];
      r.l[i][half] *= shrink;
      shift[half] = m[half] * c;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        r.o[i][n][2 * half] *= shrink;
        r.o[i][n][2 * half + 1] *= shrink;
      }
    }
#pragma unroll
    for (int j = 0; j < 2 * key_groups; ++j) {
      if (!groups.has(j / 2)) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][j][e] = ptx::ex2(s[i][j][e] * c - shift[e / 2]);
        r.l[i][e / 2] += s[i][j][e];
      }
    }
  }
  multiply_ab(r.o, s, v, groups);
}

template <int D>
__global__ void __launch_bounds__(threads, 2) attention_forward_kernel(const Problem p) {
  using L = Layout<D>;
  using Keys = typename L::Keys;
  const int64_t blocks_per_head = ceil_div(p.time, L::rows);
  const int64_t head = blockIdx.x / blocks_per_head;  // b * H + h
  const int64_t b = head / p.heads, h = head % p.heads;
  // The block's first query; the last queries of a head, which meet the most keys, start first.
  const int64_t first = (blocks_per_head - 1 - blockIdx.x % blocks_per_head) * L::rows;
  const bf16* keys = head_of(p.k, b, h / p.group);
  const bf16* values = head_of(p.v, b, h / p.group);

  const typename L::Queries tile_q{shared_memory()};
  auto tile_k = [&](int tile) {
    return Keys{shared_memory() + L::Queries::bytes + static_cast<SharedAddress>(tile % 2) * 2 * Keys::bytes};
  };
  auto tile_v = [&](int tile) { return Keys{tile_k(tile).base + Keys::bytes}; };
  auto copy_keys = [&](int tile) {
    copy_rows_async(tile_k(tile), keys, p.k.token_stride, int64_t{tile} * tile_keys, p.time, p.head_size);
    copy_rows_async(tile_v(tile), values, p.v.token_stride, int64_t{tile} * tile_keys, p.time, p.head_size);
    ptx::cp_async_commit();
  };

  copy_rows_async(tile_q, head_of(p.q, b, h), p.q.token_stride, first, p.time, p.head_size);
  copy_keys(0);

  const int warp_row = warp_index() * L::warp_rows;
  const int64_t warp_first = first + warp_row;
  const int64_t end = first + L::rows < p.time ? first + L::rows : p.time;  // of the block's queries
  // The last query of the warp; before any key when it has none.
  const int64_t past_warp = warp_first + L::warp_rows < p.time ? warp_first + L::warp_rows : p.time;
  const int64_t warp_last = warp_first < p.time ? past_warp - 1 : -1;

  RowState<D> r = {};
#pragma unroll
  for (int i = 0; i < L::m_tiles; ++i)
    r.m[i][0] = r.m[i][1] = -infinity();

  const int tiles = static_cast<int>(ceil_div(end, tile_keys));
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // (a) the tile is visible to all (b) all are done with the tile before
    if (tile + 1 < tiles) copy_keys(tile + 1);
    const int64_t first_key = int64_t{tile} * tile_keys;
    const int offset = static_cast<int>(warp_first - first_key);
    if (first_key > warp_last) continue;  // above the diagonal
    if (first_key + tile_keys - 1 <= warp_first) {
      attend<D>(r, tile_q, warp_row, tile_k(tile), tile_v(tile), Groups<false>{}, offset, p.c);
    } else {
      const int end_group = static_cast<int>((warp_last - first_key) / 16) + 1;
      attend<D>(r, tile_q, warp_row, tile_k(tile), tile_v(tile), Groups<true>{0, end_group}, offset, p.c);
    }
  }

#pragma unroll
  for (int i = 0; i < L::m_tiles; ++i) {
    const int64_t row = warp_first + 16 * i;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float l = group_reduce<4>(r.l[i][half], Sum{});
      factor[half] = 1.0f / l;
      const int64_t query = row + accumulator_row(2 * half);
      if (query < p.time && accumulator_column(0) == 0)
        p.lse[head * p.time + query] = (r.m[i][half] * p.c + ptx::lg2(l)) * ln_2;
    }
    store_rows(r.o[i], factor, tile_q, warp_row + 16 * i, head_of(p.out, b, h) + row * p.out.token_stride,
               p.out.token_stride, p.time - row, p.head_size);
  }
}

}  // namespace

void attention_forward(const AttentionShape& s, const HeadsView<const bf16>& q,
                       const HeadsView<const bf16>& k, const HeadsView<const bf16>& v,
                       const HeadsView<bf16>& out, float* lse, cudaStream_t stream) {
  if (s.batch * s.time * s.heads == 0) return;
  check_operands(s, q, k, v, out);
  const double c = std::numbers::log2e / std::sqrt(static_cast<double>(s.head_size));
  const Problem p{q,
                  k,
                  v,
                  out,
                  lse,
                  s.time,
                  s.heads,
                  s.heads / s.kv_heads,
                  static_cast<int>(s.head_size),
                  static_cast<float>(c)};
  with_tile_width(s.head_size, [&](auto width) {
    using L = Layout<width.value>;
    launch(attention_forward_kernel<width.value>, grid_of(s.batch * s.heads * ceil_div(s.time, L::rows)),
           threads, L::shared_bytes, stream, p);
  });
}

}  // namespace hearth::kernels
