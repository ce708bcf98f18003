// Causal attention, backward, deterministic, with mma.sync.
//
//   P[i, j]  = exp(q[i] . k[j] / sqrt(D) - lse[i])        j <= i, recomputed from the saved lse
//   dP[i, j] = dout[i] . v[j]
//   dS[i, j] = P (dP - delta[i]),  delta[i] = dout[i] . out[i]
//   dv[j] = sum_i P dout[i]     dk[j] = sum_i dS q[i] / sqrt(D)     dq[i] = sum_j dS k[j] / sqrt(D)
//
// Three kernels.  `delta`; then `dkdv`, where a block owns keys and meets all queries of all heads that share
// them; then `dq`, where a block owns queries and meets all keys.  A fused kernel would need 5 products per
// pair of tiles instead of 7, but every block would have to add to every row of dq: with atomics in no fixed
// order, or with a queue.  Here every sum has one owner and one order, no gradient passes through memory
// twice, and P and dS stay in registers: dkdv computes the transposes, P^T = exp(k q^T ..) and
// dP^T = v dout^T, so that its accumulators are the left sides of dv += P^T dout and dk += dS^T q.
//
// Launch.  One block of 4 warps per head and 64 keys (dkdv) or 64 queries (dq), 16 rows a warp; the longest
// blocks of a head come first.
//
// Shared memory; n = 64, or 32 when D > 80; ' is the next tile, in flight:
//
//   mine 64 x D, twice | other n x D, twice | other' n x D, twice | dkdv: lse, delta n x 2
//   dkdv: mine = k, v    other = q, dout        dq: mine = q, dout    other = k, v
//
// 55 KiB for D = 64, 67 KiB for D = 80, 69 KiB for D = 128.
//
// Registers (D = 64, dkdv): 32 dk + 32 dv + 32 P + 32 dP + fragments.
// Work: 14 D FLOP for each pair i >= j.  Bytes: every operand twice from memory, the rest from the L2 cache.
#include "kernels/attention.cuh"

namespace hearth::kernels {
namespace {
using namespace attention;

template <int D>
struct Layout {
  static constexpr int mine_rows = 16 * warps;
  static constexpr int other_rows = D <= 80 ? 64 : 32;
  static constexpr int groups = other_rows / 16;
  using Mine = PaddedTile<mine_rows, D>;
  using Other = PaddedTile<other_rows, D>;
  static constexpr int others_at = 2 * Mine::bytes;
  static constexpr int statistics_at = others_at + 4 * Other::bytes;
  static constexpr int statistics_bytes = other_rows * 2 * static_cast<int>(sizeof(float));
  static constexpr int dq_bytes = statistics_at;
  static constexpr int dkdv_bytes = statistics_at + 2 * statistics_bytes;
  static_assert(dkdv_bytes <= max_shared_bytes);
};

struct Problem {
  HeadsView<const bf16> q, k, v, out, dout;
  const float* lse;
  float* delta;
  HeadsView<bf16> dq, dk, dv;
  int64_t batch, time, heads;
  int group;  // query heads per key head
  int head_size;
  float c;      // log2(e) / sqrt(D)
  float scale;  // 1 / sqrt(D)
};

// ---- delta

// A row of one head belongs to `width` lanes, each with 8 of its elements.
template <int width>
__global__ void __launch_bounds__(threads) attention_delta_kernel(const Problem p) {
  const int64_t row = global_thread_index() / width;  // (b * T + t) * H + h
  const int column = lane_index() % width * chunk_elements;
  const bool valid = row < p.batch * p.time * p.heads;
  const int64_t h = row % p.heads, t = row / p.heads % p.time, b = row / p.heads / p.time;
  float sum = 0;
  if (valid && column < p.head_size) {
    const Vector<bf16> out = load16(head_of(p.out, b, h) + t * p.out.token_stride + column);
    const Vector<bf16> dout = load16(head_of(p.dout, b, h) + t * p.dout.token_stride + column);
#pragma unroll
    for (int i = 0; i < chunk_elements; ++i)
      sum += to_float(out[i]) * to_float(dout[i]);
  }
  sum = group_reduce<width>(sum, Sum{});
  if (valid && column == 0) p.delta[(b * p.heads + h) * p.time + t] = sum;
}

// ---- dk and dv

// lse in base 2 and delta of a query.  Beyond the last query lse is infinite, so that P = 0.
struct Statistics {
  float lse, delta;
};
__device__ __forceinline__ Statistics load_statistics(const Problem& p, int64_t head, int64_t query) {
  if (query >= p.time) return {infinity(), 0};
  return {p.lse[head * p.time + query] * log2_e, p.delta[head * p.time + query]};
}

// Loads the fragments of one of this warp's groups of rows from its own tile.
template <class Tile>
struct FromTile {
  Tile tile;
  int row;
  __device__ __forceinline__ void operator()(int, int column, uint32_t (&a)[4]) const {
    load_a<true>(a, tile, row, column);
  }
};

template <int D>
struct KeyGradients {
  float dk[1][D / 8][4];
  float dv[1][D / 8][4];
};

// One tile of queries.  `offset` = first key of the warp - first query of the tile.
template <int D, bool edge>
__device__ __forceinline__ void add_queries(KeyGradients<D>& sum, const FromTile<typename Layout<D>::Mine>& k,
                                            const FromTile<typename Layout<D>::Mine>& v,
                                            const typename Layout<D>::Other& q,
                                            const typename Layout<D>::Other& dout, SharedAddress statistics,
                                            const Groups<edge>& groups, int offset, float c) {
  constexpr int n_tiles = 2 * Layout<D>::groups;
  float P[1][n_tiles][4] = {}, dS[1][n_tiles][4] = {};  // transposed: rows are keys, columns queries
  multiply_abt(P, k, q, groups);
  multiply_abt(dS, v, dout, groups);
#pragma unroll
  for (int j = 0; j < n_tiles; ++j) {
    if (!groups.has(j / 2)) continue;
    const int column = 8 * j + accumulator_column(0);
    const float4 pair = shared_load<float4>(statistics + static_cast<SharedAddress>(column) * 8);
    const float lse[2] = {pair.x, pair.z}, delta[2] = {pair.y, pair.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float exponent = P[0][j][e] * c - lse[e % 2];
      if constexpr (edge)
        if (column + e % 2 < offset + accumulator_row(e)) exponent = -infinity();
      P[0][j][e] = ptx::ex2(exponent);
      dS[0][j][e] = P[0][j][e] * (dS[0][j][e] - delta[e % 2]);
    }
  }
  multiply_ab(sum.dv, P, dout, groups);
  multiply_ab(sum.dk, dS, q, groups);
}

template <int D>
__global__ void __launch_bounds__(threads, 2) attention_dkdv_kernel(const Problem p) {
  using L = Layout<D>;
  using Other = typename L::Other;
  const int64_t blocks_per_head = ceil_div(p.time, L::mine_rows);
  const int64_t kv_heads = p.heads / p.group;
  const int64_t head = blockIdx.x / blocks_per_head;  // b * Hkv + h
  const int64_t b = head / kv_heads, h = head % kv_heads;
  const int64_t first = blockIdx.x % blocks_per_head * L::mine_rows;  // key

  const typename L::Mine tile_k{shared_memory()};
  const typename L::Mine tile_v{shared_memory() + L::Mine::bytes};
  auto tile_q = [&](int step) {
    return Other{shared_memory() + L::others_at + static_cast<SharedAddress>(step % 2) * 2 * Other::bytes};
  };
  auto tile_dout = [&](int step) { return Other{tile_q(step).base + Other::bytes}; };
  auto statistics = [&](int step) {
    return shared_memory() + L::statistics_at + static_cast<SharedAddress>(step % 2) * L::statistics_bytes;
  };

  // Steps: for each query head of the group, the tiles of queries from the diagonal on.
  const int first_tile = static_cast<int>(first / L::other_rows);
  const int tiles = static_cast<int>(ceil_div(p.time, L::other_rows)) - first_tile;
  const int steps = tiles * p.group;
  auto query_head = [&](int step) { return h * p.group + step / tiles; };
  auto first_query = [&](int step) { return int64_t{first_tile + step % tiles} * L::other_rows; };
  auto copy_queries = [&](int step) {
    const int64_t g = query_head(step), query = first_query(step);
    copy_rows_async(tile_q(step), head_of(p.q, b, g), p.q.token_stride, query, p.time, p.head_size);
    copy_rows_async(tile_dout(step), head_of(p.dout, b, g), p.dout.token_stride, query, p.time, p.head_size);
    ptx::cp_async_commit();
  };
  const int mine = static_cast<int>(threadIdx.x);  // the query of a tile whose statistics this thread loads
  auto load_my_statistics = [&](int step) {
    return load_statistics(p, b * p.heads + query_head(step), first_query(step) + mine);
  };
  auto store_my_statistics = [&](int step, const Statistics& s) {
    if (mine < L::other_rows)
      shared_store(statistics(step) + static_cast<SharedAddress>(mine) * 8, float2{s.lse, s.delta});
  };

  copy_rows_async(tile_k, head_of(p.k, b, h), p.k.token_stride, first, p.time, p.head_size);
  copy_rows_async(tile_v, head_of(p.v, b, h), p.v.token_stride, first, p.time, p.head_size);
  copy_queries(0);
  store_my_statistics(0, load_my_statistics(0));

  const int warp_row = warp_index() * 16;
  const int64_t warp_first = first + warp_row;
  const FromTile<typename L::Mine> k{tile_k, warp_row}, v{tile_v, warp_row};
  KeyGradients<D> sum = {};
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // (a) the tiles of `step` are visible to all (b) all are done with those of step - 1
    Statistics next = {};
    if (step + 1 < steps) {
      copy_queries(step + 1);
      next = load_my_statistics(step + 1);  // needed after the products
    }
    const int64_t query = first_query(step);
    const int offset = static_cast<int>(warp_first - query);
    if (offset >= L::other_rows || warp_first >= p.time) {
      // above the diagonal, or no keys
    } else if (offset + 15 <= 0 && query + L::other_rows <= p.time) {
      add_queries<D>(sum, k, v, tile_q(step), tile_dout(step), statistics(step), Groups<false>{}, offset,
                     p.c);
    } else {
      const int64_t left = p.time - query;
      const Groups<true> groups{offset > 0 ? offset / 16 : 0,
                                left < L::other_rows ? static_cast<int>(ceil_div(left, 16)) : L::groups};
      add_queries<D>(sum, k, v, tile_q(step), tile_dout(step), statistics(step), groups, offset, p.c);
    }
    if (step + 1 < steps) store_my_statistics(step + 1, next);
  }

  const float scale[2] = {p.scale, p.scale}, one[2] = {1, 1};
  store_rows(sum.dk[0], scale, tile_k, warp_row, head_of(p.dk, b, h) + warp_first * p.dk.token_stride,
             p.dk.token_stride, p.time - warp_first, p.head_size);
  store_rows(sum.dv[0], one, tile_v, warp_row, head_of(p.dv, b, h) + warp_first * p.dv.token_stride,
             p.dv.token_stride, p.time - warp_first, p.head_size);
}

// ---- dq

// One tile of keys.  `offset` = first query of the warp - first key of the tile.
template <int D, bool edge>
__device__ __forceinline__ void add_keys(float (&dq)[1][D / 8][4],
                                         const FromTile<typename Layout<D>::Mine>& q,
                                         const FromTile<typename Layout<D>::Mine>& dout,
                                         const typename Layout<D>::Other& k,
                                         const typename Layout<D>::Other& v,
                                         const Statistics (&statistics)[2], const Groups<edge>& groups,
                                         int offset, float c) {
  constexpr int n_tiles = 2 * Layout<D>::groups;
  float S[1][n_tiles][4] = {}, dS[1][n_tiles][4] = {};
  multiply_abt(S, q, k, groups);
  multiply_abt(dS, dout, v, groups);
#pragma unroll
  for (int j = 0; j < n_tiles; ++j) {
    if (!groups.has(j / 2)) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Statistics& row = statistics[e / 2];
      float exponent = S[0][j][e] * c - row.lse;
      if constexpr (edge)
        if (8 * j + accumulator_column(e) > offset + accumulator_row(e)) exponent = -infinity();
      dS[0][j][e] = ptx::ex2(exponent) * (dS[0][j][e] - row.delta);
    }
  }
  multiply_ab(dq, dS, k, groups);
}

template <int D>
__global__ void __launch_bounds__(threads, 2) attention_dq_kernel(const Problem p) {
  using L = Layout<D>;
  using Other = typename L::Other;
  const int64_t blocks_per_head = ceil_div(p.time, L::mine_rows);
  const int64_t head = blockIdx.x / blocks_per_head;  // b * H + h
  const int64_t b = head / p.heads, h = head % p.heads;
  const int64_t first = (blocks_per_head - 1 - blockIdx.x % blocks_per_head) * L::mine_rows;  // query
  const bf16* keys = head_of(p.k, b, h / p.group);
  const bf16* values = head_of(p.v, b, h / p.group);

  const typename L::Mine tile_q{shared_memory()};
  const typename L::Mine tile_dout{shared_memory() + L::Mine::bytes};
  auto tile_k = [&](int tile) {
    return Other{shared_memory() + L::others_at + static_cast<SharedAddress>(tile % 2) * 2 * Other::bytes};
  };
  auto tile_v = [&](int tile) { return Other{tile_k(tile).base + Other::bytes}; };
  auto copy_keys = [&](int tile) {
    copy_rows_async(tile_k(tile), keys, p.k.token_stride, int64_t{tile} * L::other_rows, p.time, p.head_size);
    copy_rows_async(tile_v(tile), values, p.v.token_stride, int64_t{tile} * L::other_rows, p.time,
                    p.head_size);
    ptx::cp_async_commit();
  };

  copy_rows_async(tile_q, head_of(p.q, b, h), p.q.token_stride, first, p.time, p.head_size);
  copy_rows_async(tile_dout, head_of(p.dout, b, h), p.dout.token_stride, first, p.time, p.head_size);
  copy_keys(0);

  const int warp_row = warp_index() * 16;
  const int64_t warp_first = first + warp_row;
  const int64_t end = first + L::mine_rows < p.time ? first + L::mine_rows : p.time;
  const int64_t past_warp = warp_first + 16 < p.time ? warp_first + 16 : p.time;
  const int64_t warp_last = warp_first < p.time ? past_warp - 1 : -1;  // before any key: no queries
  const Statistics statistics[2] = {load_statistics(p, head, warp_first + accumulator_row(0)),
                                    load_statistics(p, head, warp_first + accumulator_row(2))};
  const FromTile<typename L::Mine> q{tile_q, warp_row}, dout{tile_dout, warp_row};
  float dq[1][D / 8][4] = {};

  const int tiles = static_cast<int>(ceil_div(end, L::other_rows));
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // (a) the tile is visible to all (b) all are done with the tile before
    if (tile + 1 < tiles) copy_keys(tile + 1);
    const int64_t first_key = int64_t{tile} * L::other_rows;
    const int offset = static_cast<int>(warp_first - first_key);
    if (first_key > warp_last) continue;  // above the diagonal
    if (first_key + L::other_rows - 1 <= warp_first) {
      add_keys<D>(dq, q, dout, tile_k(tile), tile_v(tile), statistics, Groups<false>{}, offset, p.c);
    } else {
      const int64_t last_group = (warp_last - first_key) / 16;
      const Groups<true> groups{0, last_group < L::groups ? static_cast<int>(last_group) + 1 : L::groups};
      add_keys<D>(dq, q, dout, tile_k(tile), tile_v(tile), statistics, groups, offset, p.c);
    }
  }

  const float scale[2] = {p.scale, p.scale};
  store_rows(dq[0], scale, tile_q, warp_row, head_of(p.dq, b, h) + warp_first * p.dq.token_stride,
             p.dq.token_stride, p.time - warp_first, p.head_size);
}

template <int width>
void launch_delta(const Problem& p, cudaStream_t stream) {
  const int64_t rows = p.batch * p.time * p.heads;
  launch(attention_delta_kernel<width>, grid_of(ceil_div(rows * width, threads)), threads, 0, stream, p);
}

}  // namespace

void attention_backward(const AttentionShape& s, const HeadsView<const bf16>& q,
                        const HeadsView<const bf16>& k, const HeadsView<const bf16>& v,
                        const HeadsView<const bf16>& out, const HeadsView<const bf16>& dout, const float* lse,
                        float* delta, const HeadsView<bf16>& dq, const HeadsView<bf16>& dk,
                        const HeadsView<bf16>& dv, cudaStream_t stream) {
  if (s.batch * s.time * s.heads == 0) return;
  check_operands(s, q, k, v, out, dout, dq, dk, dv);
  Problem p{};
  p.q = q, p.k = k, p.v = v, p.out = out, p.dout = dout;
  p.lse = lse, p.delta = delta;
  p.dq = dq, p.dk = dk, p.dv = dv;
  p.batch = s.batch, p.time = s.time, p.heads = s.heads;
  p.group = static_cast<int>(s.heads / s.kv_heads);
  p.head_size = static_cast<int>(s.head_size);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_size));
  p.scale = static_cast<float>(scale);
  p.c = static_cast<float>(std::numbers::log2e * scale);
  with_tile_width(s.head_size, [&](auto width) {
    constexpr int D = width.value;
    using L = Layout<D>;
    launch_delta<D <= 16 ? 2 : D <= 32 ? 4 : D <= 64 ? 8 : 16>(p, stream);
    const int64_t blocks = ceil_div(s.time, L::mine_rows);
    launch(attention_dkdv_kernel<D>, grid_of(s.batch * s.kv_heads * blocks), threads, L::dkdv_bytes, stream,
           p);
    launch(attention_dq_kernel<D>, grid_of(s.batch * s.heads * blocks), threads, L::dq_bytes, stream, p);
  });
}

}  // namespace hearth::kernels
