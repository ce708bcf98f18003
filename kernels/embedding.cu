// Token and position embeddings: gathers of rows, and scatters that add in the order of r without atomics.
//
//   tokens:     out[r] = table[token[r]]
//   positions:  x[r] = dropout(x[r] + table[position[r]])
//   backward:   dtable[index[r]] += d[r]
//
// [N, C] bf16, table [V, C] bf16, dtable [V, C] fp32, indices [N] i32.
//
// Gathers: a warp per row.  Bytes: 4 N C with the rows of the table counted once per use.
//
// Scatter.  Block b of B (a power of two, up to 1024) owns the table rows v with v % B = b, so that frequent
// neighbours in the vocabulary meet in different blocks.  It reads all indices, 2048 at a time, and appends
// those it owns, in order, to a list in shared memory: (r, local row v / B).  When the list might overflow,
// and at the end, a warp takes each entry that is the first of its row, and 256 columns: it loads the 8 sums
// of each lane, adds d[r] for all of the row's entries in order, 8 loads in flight, and stores the sums.  So
// each element is added to in the order of r, whatever the number of blocks, and only one warp touches it.
// When all tokens are equal one block does all the work, at about 100 ns per row: slow, and correct.
// Shared memory (32 KiB + 32):   list [4096] x (r, local row) | matches of each warp [8]
// Bytes: 2 N C of d, 8 V' C for the V' rows that occur; N B indices, from L2.
#include "kernels/embedding.h"

#include "kernels/dropout.cuh"

namespace hearth::kernels {
namespace {

// ---- gathers

struct Gather {
  const int32_t* indices;
  Rows<const bf16> table;
  int64_t start, table_rows;
  Rows<bf16> out;
  int64_t rows, channels;
};

__global__ void __launch_bounds__(row_threads) embed_tokens_kernel(const __grid_constant__ Gather p) {
  const int64_t row = row_of_warp();
  if (row >= p.rows) return;
  const int64_t source = p.indices[row] - p.start;
  const bool here = source >= 0 && source < p.table_rows;
  for (int64_t channel = lane_index() * pack; channel < p.channels; channel += warp_size * pack) {
    Pack value = {};
    if (here) value = load16(p.table.row(source) + channel);
    store16(p.out.row(row) + channel, value);
  }
}

// x = dropout(x + table[positions]), and with an absent table what the backward pass needs: d = mask of d.
__global__ void __launch_bounds__(row_threads)
    embed_positions_kernel(const __grid_constant__ Gather p, const __grid_constant__ DropoutMask dropout) {
  const int64_t row = row_of_warp();
  if (row >= p.rows) return;
  const int64_t source = p.table ? p.indices[row] - p.start : -1;
  const bool here = source >= 0 && source < p.table_rows;
  const RowMask mask = mask_of_row(dropout, row, p.channels);
  for (int64_t channel = lane_index() * pack; channel < p.channels; channel += warp_size * pack) {
    float x[pack], y[pack] = {};
    const Pack in = load16(p.out.row(row) + channel);
    if (here) widen(load16(p.table.row(source) + channel), y);
    widen(in, x);
#pragma unroll
    for (int i = 0; i < pack; ++i)
      x[i] += y[i];
    mask.apply(x, static_cast<int>(channel));
    store16(p.out.row(row) + channel, rounded(x));
  }
}

// ---- scatter

constexpr int scatter_warps = 8;
constexpr int scatter_threads = scatter_warps * warp_size;
constexpr int per_thread = 8;  // indices that a thread reads at once
constexpr int segment = scatter_threads * per_thread;
constexpr int capacity = 2 * segment;
constexpr int in_flight = 8;  // rows of d

struct Entry {
  uint32_t row;    // of d
  uint32_t local;  // row of dtable / number of blocks
};
constexpr int counts_offset = capacity * static_cast<int>(sizeof(Entry));
constexpr int scatter_shared_bytes = counts_offset + scatter_warps * static_cast<int>(sizeof(int));

__device__ __forceinline__ SharedAddress entry_address(int i) {
  return shared_memory() + static_cast<SharedAddress>(i * static_cast<int>(sizeof(Entry)));
}

struct Scatter {
  const int32_t* indices;
  bool aligned_indices;
  Rows<const bf16> d;
  int64_t start;
  Rows<float> dtable;
  int64_t table_rows, rows, channels;
  int log2_blocks;
};

// Indices first ... first + 7; behind the end the value is `none`.
__device__ __forceinline__ void read_indices(int32_t (&index)[per_thread], const Scatter& p, int64_t first,
                                             int32_t none) {
  if (p.aligned_indices && first + per_thread <= p.rows) {
#pragma unroll
    for (int i = 0; i < per_thread; i += 4) {
      const Vector<int32_t> four = load16(p.indices + first + i);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        index[i + j] = four[j];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < per_thread; ++i)
    index[i] = first + i < p.rows ? p.indices[first + i] : none;
}

// Appends the entries of indices [begin, begin + segment) that this block owns to the list of `count`, and
// returns the new count.  Three phases: count, prefix sums over threads, write.
__device__ __forceinline__ int append_entries(const Scatter& p, int64_t begin, int count) {
  const int64_t first = begin + static_cast<int64_t>(threadIdx.x) * per_thread;
  int32_t index[per_thread];
  read_indices(index, p, first, 0);
  uint32_t mine = 0;  // bit i: index[i] belongs to this block
  int matches = 0;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = index[i] - p.start;
    const bool owned = first + i < p.rows && row >= 0 && row < p.table_rows &&
                       (row & ((int64_t{1} << p.log2_blocks) - 1)) == static_cast<int64_t>(blockIdx.x);
    mine |= static_cast<uint32_t>(owned) << i;
    matches += owned;
  }
  int before = matches;  // matches of the lanes up to this one
#pragma unroll
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const int left = __shfl_up_sync(full_warp, before, distance);
    if (lane_index() >= distance) before += left;
  }
  const auto warp_count = [](int warp) {
    return shared_memory() + counts_offset + static_cast<SharedAddress>(warp * 4);
  };
  if (lane_index() == warp_size - 1) shared_store(warp_count(warp_index()), before);
  __syncthreads();  // (a) the warps' counts are visible (b) all are done with the list that is overwritten
                    // below
  int at = count + before - matches;
  for (int warp = 0; warp < scatter_warps; ++warp) {
    const int warp_matches = shared_load<int>(warp_count(warp));
    if (warp < warp_index()) at += warp_matches;
    count += warp_matches;
  }
#pragma unroll
  for (int i = 0; i < per_thread; ++i)
    if (mine >> i & 1) {
      const int64_t row = index[i] - p.start;
      shared_store(entry_address(at++),
                   Entry{static_cast<uint32_t>(first + i), static_cast<uint32_t>(row >> p.log2_blocks)});
    }
  __syncthreads();  // (a) the entries are visible (b) all have read the warps' counts
  return count;
}

// Whether any entry in [begin, end) has this local row.  All lanes get the answer.
__device__ __forceinline__ bool contains(int begin, int end, uint32_t local) {
  for (int i = begin; i < end; i += warp_size) {
    const int mine = i + lane_index();
    const bool equal = mine < end && shared_load<Entry>(entry_address(mine)).local == local;
    if (__any_sync(full_warp, equal)) return true;
  }
  return false;
}

// sums += d[r] of this lane's columns for the entries [begin, end) with this local row, in order.
__device__ __forceinline__ void add_rows(float (&sums)[pack], const Scatter& p, int begin, int end,
                                         uint32_t local, int64_t channel, bool active) {
  Pack d[in_flight];
  bool taken[in_flight];
#pragma unroll
  for (int i = 0; i < in_flight; ++i) {
    taken[i] = false;
    if (begin + i >= end || !active) continue;
    const Entry entry = shared_load<Entry>(entry_address(begin + i));
    taken[i] = entry.local == local;
    if (taken[i]) d[i] = ptx::load16_streaming(p.d.row(entry.row) + channel);
  }
#pragma unroll
  for (int i = 0; i < in_flight; ++i) {
    if (!taken[i]) continue;
#pragma unroll
    for (int j = 0; j < pack; ++j)
      sums[j] += to_float(d[i][j]);
  }
}

// Adds the list of `count` entries to the table.
__device__ __forceinline__ void add_list(const Scatter& p, int count) {
  const int64_t slices = ceil_div(p.channels, warp_size * pack);
  for (int64_t task = warp_index(); task < count * slices; task += scatter_warps) {
    const int at = static_cast<int>(task / slices);
    const uint32_t local = shared_load<Entry>(entry_address(at)).local;
    if (contains(0, at, local)) continue;  // the task of the row's first entry does this one too
    const int64_t channel = task % slices * (warp_size * pack) + lane_index() * pack;
    const bool active = channel < p.channels;
    float* to = p.dtable.row((static_cast<int64_t>(local) << p.log2_blocks) + blockIdx.x) + channel;
    float sums[pack] = {};
    if (active) {
      const Vector<float> low = load16(to), high = load16(to + 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = low[i];
        sums[i + 4] = high[i];
      }
    }
    for (int i = at; i < count; i += warp_size) {
      const int end = i + warp_size < count ? i + warp_size : count;
      if (!contains(i, end, local)) continue;
#pragma unroll 1
      for (int part = 0; part < warp_size; part += in_flight)
        add_rows(sums, p, i + part, end, local, channel, active);
    }
    if (!active) continue;
    store16(to, Vector<float>{{sums[0], sums[1], sums[2], sums[3]}});
    store16(to + 4, Vector<float>{{sums[4], sums[5], sums[6], sums[7]}});
  }
}

__global__ void __launch_bounds__(scatter_threads, 2) scatter_kernel(const __grid_constant__ Scatter p) {
  int count = 0;
  for (int64_t begin = 0; begin < p.rows; begin += segment) {
    count = append_entries(p, begin, count);
    const bool last = begin + segment >= p.rows;
    if (!last && count + segment <= capacity) continue;
    add_list(p, count);
    count = 0;
  }
}

void scatter(const int32_t* indices, Rows<const bf16> d, int64_t start, Rows<float> dtable,
             int64_t table_rows, int64_t rows, int64_t channels, cudaStream_t stream) {
  check(rows < (int64_t{1} << 31), rows, " rows in one scatter");
  constexpr int64_t most_blocks = 1024, indices_per_block = 8;
  int log2_blocks = 0;
  for (int64_t blocks = 2;
       blocks <= most_blocks && blocks <= table_rows && blocks * indices_per_block <= rows; blocks *= 2)
    ++log2_blocks;
  launch(scatter_kernel, 1u << log2_blocks, scatter_threads, scatter_shared_bytes, stream,
         Scatter{indices, reinterpret_cast<uintptr_t>(indices) % 16 == 0, d, start, dtable, table_rows, rows,
                 channels, log2_blocks});
}

}  // namespace

void embed_tokens(const int32_t* tokens, Rows<const bf16> table, int64_t vocab_start, int64_t vocab_rows,
                  Rows<bf16> out, int64_t rows, int64_t channels, cudaStream_t stream) {
  check_channels(channels);
  check_rows("table", table, channels);
  check_rows("out", out, channels);
  check(tokens != nullptr, "tokens are absent");
  if (rows == 0) return;
  launch(embed_tokens_kernel, grid_of(ceil_div(rows, row_warps)), row_threads, 0, stream,
         Gather{tokens, table, vocab_start, vocab_rows, out, rows, channels});
}

void embed_tokens_backward(const int32_t* tokens, Rows<const bf16> d, int64_t vocab_start, Rows<float> dtable,
                           int64_t vocab_rows, int64_t rows, int64_t channels, cudaStream_t stream) {
  check_channels(channels);
  check_rows("d", d, channels);
  check_rows("dtable", dtable, channels);
  check(tokens != nullptr, "tokens are absent");
  if (rows == 0 || vocab_rows == 0) return;
  scatter(tokens, d, vocab_start, dtable, vocab_rows, rows, channels, stream);
}

void embed_positions(Rows<bf16> x, const int32_t* positions, Rows<const bf16> table, int64_t table_rows,
                     int64_t rows, int64_t channels, const Dropout& dropout, const StepParams* step,
                     cudaStream_t stream) {
  check_channels(channels);
  check_rows("x", x, channels);
  check_rows_if_present("table", table, channels);
  check(!table || positions != nullptr, "positions are absent");
  const DropoutMask mask = dropout_mask(dropout, step);
  if (rows == 0 || (!table && mask.step == nullptr)) return;
  launch(embed_positions_kernel, grid_of(ceil_div(rows, row_warps)), row_threads, 0, stream,
         Gather{positions, table, 0, table_rows, x, rows, channels}, mask);
}

void embed_positions_backward(Rows<bf16> d, const int32_t* positions, Rows<float> dtable, int64_t table_rows,
                              int64_t rows, int64_t channels, const Dropout& dropout, const StepParams* step,
                              cudaStream_t stream) {
  embed_positions(d, nullptr, {}, 0, rows, channels, dropout, step, stream);
  if (!dtable || rows == 0) return;
  check_rows("dtable", dtable, channels);
  check(positions != nullptr, "positions are absent");
  scatter(positions, {d.data, d.stride}, 0, dtable, table_rows, rows, channels, stream);
}

}  // namespace hearth::kernels
