// The residual stream and its layernorm (Ba, Kiros and Hinton 2016), with the bias, dropout and residual sum
// of the branch before it.  Operands [N, C] bf16, statistics [N] fp32, gradients of parameters [C] fp32.
//
//   forward:   x = round(residual + dropout(branch + branch_bias));   mean, rstd of the rounded x
//              normed = (x - mean) rstd weight + bias
//   backward:  with x^ = (x - mean) rstd and g = d_normed weight, rows summed over C:
//              d_residual += rstd (g - mean(g) - x^ mean(g x^));      d_branch = dropout mask of d_residual
//              over N: d_weight += sum of d_normed x^;  d_bias += d_normed;  d_branch_bias += d_branch
//
// Forward.  A warp per row, up to 8 rows per block, no barrier.  The rounded row waits in shared memory, 2C
// bytes per warp, for the second and third pass: each lane reads back only what it wrote.  Variance is summed
// around the mean.  Bytes: residual, branch read, residual_out, normed written once: 8 N C.
//
// Backward.  A block per chunk of rows, whose size depends on N alone.  A thread owns 8 (16, 32) columns for
// the whole chunk and keeps their three parameter sums in registers; the block takes 2 (1, 1) rows at a time,
// so that 6 (6, 12) vectors per thread are in flight, and needs one barrier per step for the two row sums.
// Shared memory: two buffers of [warp][row] (sum of g, sum of g x^), used alternately.  Each block writes its
// parameter sums to workspace[block][3][C]; a second kernel adds them in ascending order.
// Bytes: d_normed, x, d_residual read, d_residual, d_branch written once: 10 N C.
#include "kernels/residual_norm.h"

#include <algorithm>

#include "kernels/dropout.cuh"

namespace hearth::kernels {
namespace {

// ---- forward

// The one place with this formula, fused by hand: recomputation, in another kernel, must give the same bits.
__device__ __forceinline__ void normalise(float (&x)[pack], float mean, float rstd, const bf16* weight,
                                          const bf16* bias, int channel) {
  float w[pack], b[pack] = {};
  widen(load16(weight + channel), w);
  if (bias != nullptr) widen(load16(bias + channel), b);
#pragma unroll
  for (int i = 0; i < pack; ++i)
    x[i] = fmaf((x[i] - mean) * rstd, w[i], b[i]);
}

// x = residual + dropout(branch + branch_bias)
__device__ __forceinline__ void add_branch(float (&x)[pack], const Pack& branch, const bf16* branch_bias,
                                           const RowMask& mask, int channel) {
  float y[pack];
  widen(branch, y);
  if (branch_bias != nullptr) {
    float b[pack];
    widen(load16(branch_bias + channel), b);
#pragma unroll
    for (int i = 0; i < pack; ++i)
      y[i] += b[i];
  }
  mask.apply(y, channel);
#pragma unroll
  for (int i = 0; i < pack; ++i)
    x[i] += y[i];
}

__global__ void __launch_bounds__(row_threads)
    residual_norm_forward_kernel(const __grid_constant__ ResidualNorm p,
                                 const __grid_constant__ DropoutMask dropout) {
  const int64_t row = row_of_warp();
  if (row >= p.rows) return;
  const int channels = static_cast<int>(p.channels);
  const int lane_channel = lane_index() * pack;
  constexpr int stride = warp_size * pack;  // from a lane's vector to its next
  const SharedAddress kept = shared_memory() + static_cast<SharedAddress>(warp_index() * channels * 2);
  const RowMask mask = mask_of_row(dropout, row, p.channels);

  float sum = 0;
  for (int first = lane_channel; first < channels; first += in_flight * stride) {
    Pack residual[in_flight], branch[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int channel = first + i * stride;
      if (channel >= channels) continue;
      residual[i] = load16(p.residual.row(row) + channel);
      if (p.branch) branch[i] = ptx::load16_streaming(p.branch.row(row) + channel);
    }
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int channel = first + i * stride;
      if (channel >= channels) continue;
      Pack out = residual[i];
      float x[pack];
      widen(out, x);
      if (p.branch) {
        add_branch(x, branch[i], p.branch_bias, mask, channel);
        out = rounded(x);
        store16(p.residual_out.row(row) + channel, out);
        widen(out, x);
      }
      shared_store(kept + static_cast<SharedAddress>(channel * 2), out);
#pragma unroll
      for (int j = 0; j < pack; ++j)
        sum += x[j];
    }
  }
  if (p.weight == nullptr) return;

  const float mean = warp_sum(sum) / static_cast<float>(channels);
  float squares = 0;
  for (int channel = lane_channel; channel < channels; channel += stride) {
    float x[pack];
    widen(shared_load<Pack>(kept + static_cast<SharedAddress>(channel * 2)), x);
#pragma unroll
    for (int i = 0; i < pack; ++i)
      squares += (x[i] - mean) * (x[i] - mean);
  }
  const float rstd = ptx::rsqrt(warp_sum(squares) / static_cast<float>(channels) + p.eps);
  for (int channel = lane_channel; channel < channels; channel += stride) {
    float x[pack];
    widen(shared_load<Pack>(kept + static_cast<SharedAddress>(channel * 2)), x);
    normalise(x, mean, rstd, p.weight, p.bias, channel);
    store16(p.normed.row(row) + channel, rounded(x));
  }
  if (lane_index() == 0) {
    p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

struct NormApply {
  Rows<const bf16> x;
  const float* mean;
  const float* rstd;
  const bf16* weight;
  const bf16* bias;
  Rows<bf16> normed;
  int64_t rows, channels;
};

__global__ void __launch_bounds__(row_threads) norm_apply_kernel(const __grid_constant__ NormApply p) {
  const int64_t row = row_of_warp();
  if (row >= p.rows) return;
  const float mean = p.mean[row], rstd = p.rstd[row];
  const int channels = static_cast<int>(p.channels);
  constexpr int stride = warp_size * pack;
  for (int first = lane_index() * pack; first < channels; first += in_flight * stride) {
    Pack in[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * stride < channels) in[i] = load16(p.x.row(row) + first + i * stride);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int channel = first + i * stride;
      if (channel >= channels) continue;
      float x[pack];
      widen(in[i], x);
      normalise(x, mean, rstd, p.weight, p.bias, channel);
      store16(p.normed.row(row) + channel, rounded(x));
    }
  }
}

// ---- backward

constexpr int max_threads = 256;
constexpr int64_t max_chunks = 512;
constexpr int64_t rows_multiple = 2;  // the most rows of one step

int64_t rows_per_chunk(int64_t rows) {
  return ceil_div(ceil_div(rows, max_chunks), rows_multiple) * rows_multiple;
}

// The parameter gradients, in the order of their partial sums.
enum Gradient : int { d_weight, d_bias, d_branch_bias };
constexpr int gradients = 3;

// Sums of `count` values over the block, in lane and warp order; one barrier.  Calls alternate between two
// buffers: the barrier of the next call lies between the last read of a buffer and its next write.
template <int count>
__device__ __forceinline__ void block_sums(float (&values)[count], SharedAddress buffer,
                                           Site site = Site::here()) {
#pragma unroll
  for (int i = 0; i < count; ++i)
    values[i] = warp_sum(values[i], site);
  constexpr int bytes = count * static_cast<int>(sizeof(float));
  if (lane_index() == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i)
      shared_store(buffer + static_cast<SharedAddress>(warp_index() * bytes + i * 4), values[i], site);
  }
  block_sync(site);
  const int warps = static_cast<int>(blockDim.x) / warp_size;
#pragma unroll
  for (int i = 0; i < count; ++i)
    values[i] = 0;
  for (int warp = 0; warp < warps; ++warp) {
#pragma unroll
    for (int i = 0; i < count; ++i)
      values[i] += shared_load<float>(buffer + static_cast<SharedAddress>(warp * bytes + i * 4), site);
  }
}

// packs: vectors that a thread owns; steps of `step_rows` rows.
template <int packs, int step_rows>
__global__ void __launch_bounds__(max_threads)
    residual_norm_backward_kernel(const __grid_constant__ ResidualNormBackward p,
                                  const __grid_constant__ DropoutMask dropout, int64_t chunk_rows,
                                  float* partial) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk_rows;
  const int64_t end = begin + chunk_rows < p.rows ? begin + chunk_rows : p.rows;
  const int channels = static_cast<int>(p.channels);
  const int stride = static_cast<int>(blockDim.x) * pack;  // from a thread's vector to its next
  const int own = static_cast<int>(threadIdx.x) * pack;
  const bool norm = p.weight != nullptr;
  const bool reads_residual = !norm || p.accumulate;
  const float inverse_channels = 1.0f / static_cast<float>(channels);

  float sums[gradients][packs][pack] = {};
  float weight[packs][pack] = {};
#pragma unroll
  for (int v = 0; v < packs; ++v)
    if (norm && own + v * stride < channels) widen(load16(p.weight + own + v * stride), weight[v]);

  SharedAddress buffer = shared_memory(), other_buffer = buffer + max_threads / warp_size * step_rows * 8;
  for (int64_t first_row = begin; first_row < end; first_row += step_rows) {
    Pack d_normed[step_rows][packs], x[step_rows][packs], d_residual[step_rows][packs];
    float mean[step_rows] = {}, rstd[step_rows] = {};
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      const int64_t row = first_row + r;
      if (row < end && norm) {
        mean[r] = p.mean[row];
        rstd[r] = p.rstd[row];
      }
#pragma unroll
      for (int v = 0; v < packs; ++v) {
        const int channel = own + v * stride;
        d_normed[r][v] = x[r][v] = d_residual[r][v] = {};
        if (row >= end || channel >= channels) continue;
        if (norm) {
          d_normed[r][v] = ptx::load16_streaming(p.d_normed.row(row) + channel);
          x[r][v] = ptx::load16_streaming(p.x.row(row) + channel);
        }
        if (reads_residual) d_residual[r][v] = load16(p.d_residual.row(row) + channel);
      }
    }

    float row_sums[2 * step_rows] = {};  // of g and of g x^, for each row
    if (norm) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r)
#pragma unroll
        for (int v = 0; v < packs; ++v)
#pragma unroll
          for (int i = 0; i < pack; ++i) {
            const float g = to_float(d_normed[r][v][i]) * weight[v][i];
            const float x_hat = (to_float(x[r][v][i]) - mean[r]) * rstd[r];
            row_sums[2 * r] += g;
            row_sums[2 * r + 1] += g * x_hat;
          }
      block_sums(row_sums, buffer);
      const SharedAddress next = other_buffer;
      other_buffer = buffer;
      buffer = next;
    }

#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      const int64_t row = first_row + r;
      if (row >= end) continue;
      const float g_mean = row_sums[2 * r] * inverse_channels;
      const float gx_mean = row_sums[2 * r + 1] * inverse_channels;
      const RowMask mask = mask_of_row(dropout, row, p.channels);
#pragma unroll
      for (int v = 0; v < packs; ++v) {
        const int channel = own + v * stride;
        if (channel >= channels) continue;
        float d[pack];
        widen(d_residual[r][v], d);
        if (norm) {
#pragma unroll
          for (int i = 0; i < pack; ++i) {
            const float dy = to_float(d_normed[r][v][i]);
            const float x_hat = (to_float(x[r][v][i]) - mean[r]) * rstd[r];
            d[i] += rstd[r] * (dy * weight[v][i] - g_mean - x_hat * gx_mean);
            sums[d_weight][v][i] += dy * x_hat;
            sums[d_bias][v][i] += dy;
          }
          const Pack out = rounded(d);
          store16(p.d_residual.row(row) + channel, out);
          widen(out, d);
        }
        if (!p.d_branch) continue;
        mask.apply(d, channel);
        const Pack out = rounded(d);
        if (p.d_branch.data != p.d_residual.data) store16(p.d_branch.row(row) + channel, out);
        widen(out, d);
#pragma unroll
        for (int i = 0; i < pack; ++i)
          sums[d_branch_bias][v][i] += d[i];
      }
    }
  }

  // A null `partial`: nobody wants the sums.
#pragma unroll
  for (int which = 0; which < gradients; ++which)
#pragma unroll
    for (int v = 0; v < packs; ++v) {
      const int channel = own + v * stride;
      if (partial == nullptr || channel >= channels) continue;
      float* to = partial + (static_cast<int64_t>(blockIdx.x) * gradients + which) * channels + channel;
      const auto& s = sums[which][v];
      store16(to, Vector<float>{{s[0], s[1], s[2], s[3]}});
      store16(to + 4, Vector<float>{{s[4], s[5], s[6], s[7]}});
    }
}

// gradient[c] += sum over chunks of partial[chunk][gradient][c].  A block has 32 columns; warp w adds chunks
// w, w + 16, ..., then warp 0 adds the warps' sums in order.
constexpr int reduce_warps = 16;
struct Reduction {
  const float* partial;
  int64_t chunks;
  int channels;
  float* to[gradients];  // null: not wanted
};
__global__ void __launch_bounds__(reduce_warps* warp_size)
    add_partial_sums_kernel(const __grid_constant__ Reduction p) {
  const int columns = gradients * p.channels;
  const int column = static_cast<int>(blockIdx.x) * warp_size + lane_index();
  const auto slot = [](int warp) {
    return shared_memory() + static_cast<SharedAddress>((warp * warp_size + lane_index()) * 4);
  };
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t chunk = warp_index(); chunk < p.chunks; chunk += reduce_warps)
      sum += p.partial[chunk * columns + column];
  }
  shared_store(slot(warp_index()), sum);
  __syncthreads();  // all warps' sums are visible
  if (warp_index() != 0 || column >= columns) return;
  for (int warp = 1; warp < reduce_warps; ++warp)
    sum += shared_load<float>(slot(warp));
  float* to = p.to[column / p.channels];
  if (to != nullptr) to[column % p.channels] += sum;
}

void check_parameter(const char* name, const void* address) {
  check(address != nullptr, name, " is absent");
  check_aligned(name, address);
}

template <int packs, int step_rows>
void launch_backward(const ResidualNormBackward& p, const DropoutMask& mask, float* partial,
                     cudaStream_t stream) {
  const int64_t chunk_rows = rows_per_chunk(p.rows);
  const int64_t threads = ceil_div(ceil_div(p.channels, int64_t{pack} * packs), warp_size) * warp_size;
  constexpr size_t shared_bytes = 2 * (max_threads / warp_size) * step_rows * 2 * sizeof(float);
  launch(residual_norm_backward_kernel<packs, step_rows>, static_cast<unsigned>(ceil_div(p.rows, chunk_rows)),
         static_cast<unsigned>(threads), shared_bytes, stream, p, mask, chunk_rows, partial);
}

}  // namespace

void residual_norm_forward(const ResidualNorm& p, const Dropout& dropout, const StepParams* step,
                           cudaStream_t stream) {
  check_channels(p.channels);
  check(p.channels <= max_norm_channels, p.channels, " channels: the norm has room for ", max_norm_channels);
  check_rows("residual", p.residual, p.channels);
  check_rows_if_present("branch", p.branch, p.channels);
  check_aligned("branch_bias", p.branch_bias);
  if (p.branch) check_rows("residual_out", p.residual_out, p.channels);
  if (p.weight) {
    check_parameter("weight", p.weight);
    check_aligned("bias", p.bias);
    check_rows("normed", p.normed, p.channels);
    check(p.mean && p.rstd, "mean or rstd is absent");
  }
  if (p.rows == 0) return;
  constexpr int64_t room = 48 * 1024;
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(bf16));
  const int warps = static_cast<int>(std::min<int64_t>(row_warps, room / row_bytes));
  launch(residual_norm_forward_kernel, grid_of(ceil_div(p.rows, warps)),
         static_cast<unsigned>(warps * warp_size), static_cast<size_t>(warps * row_bytes), stream, p,
         p.branch ? dropout_mask(dropout, step) : DropoutMask{});
}

void norm_apply(Rows<const bf16> x, const float* mean, const float* rstd, const bf16* weight,
                const bf16* bias, Rows<bf16> normed, int64_t rows, int64_t channels, cudaStream_t stream) {
  check_channels(channels);
  check_rows("x", x, channels);
  check_rows("normed", normed, channels);
  check_parameter("weight", weight);
  check_aligned("bias", bias);
  check(mean && rstd, "mean or rstd is absent");
  if (rows == 0) return;
  launch(norm_apply_kernel, grid_of(ceil_div(rows, row_warps)), row_threads, 0, stream,
         NormApply{x, mean, rstd, weight, bias, normed, rows, channels});
}

size_t residual_norm_backward_workspace_bytes(int64_t rows, int64_t channels) {
  if (rows == 0) return 0;
  return static_cast<size_t>(ceil_div(rows, rows_per_chunk(rows)) * gradients * channels) * sizeof(float);
}

void residual_norm_backward(const ResidualNormBackward& p, const Dropout& dropout, const StepParams* step,
                            void* workspace, cudaStream_t stream) {
  check_channels(p.channels);
  check(p.channels <= max_norm_channels, p.channels, " channels: the norm has room for ", max_norm_channels);
  check_rows("d_residual", p.d_residual, p.channels);
  check(static_cast<bool>(p.d_normed) == (p.weight != nullptr), "d_normed and weight come together");
  check(p.d_normed || p.accumulate, "without a norm and without accumulation there is no gradient");
  if (p.d_normed) {
    check_rows("d_normed", p.d_normed, p.channels);
    check_rows("x", p.x, p.channels);
    check_parameter("weight", p.weight);
    check(p.mean && p.rstd && p.d_weight, "mean, rstd or d_weight is absent");
  }
  check_rows_if_present("d_branch", p.d_branch, p.channels);
  check(p.d_branch || !p.d_branch_bias, "d_branch_bias without d_branch");
  check(p.d_branch.data != p.d_residual.data || dropout.probability == 0,
        "dropout would overwrite d_residual with d_branch");
  const Reduction reduction = {
      static_cast<const float*>(workspace),
      p.rows == 0 ? 0 : ceil_div(p.rows, rows_per_chunk(p.rows)),
      static_cast<int>(p.channels),
      {p.d_normed ? p.d_weight : nullptr, p.d_normed ? p.d_bias : nullptr, p.d_branch_bias}};
  const bool sums = reduction.to[d_weight] || reduction.to[d_bias] || reduction.to[d_branch_bias];
  const bool branch_differs = p.d_branch && p.d_branch.data != p.d_residual.data;
  if (p.rows == 0 || (!p.d_normed && !sums && !branch_differs)) return;
  if (sums) check_parameter("workspace", workspace);

  const DropoutMask mask = p.d_branch ? dropout_mask(dropout, step) : DropoutMask{};
  float* partial = sums ? static_cast<float*>(workspace) : nullptr;
  if (p.channels <= int64_t{max_threads} * pack)
    launch_backward<1, 2>(p, mask, partial, stream);
  else if (p.channels <= int64_t{max_threads} * pack * 2)
    launch_backward<2, 1>(p, mask, partial, stream);
  else
    launch_backward<4, 1>(p, mask, partial, stream);
  if (sums)
    launch(add_partial_sums_kernel, static_cast<unsigned>(ceil_div(gradients * p.channels, warp_size)),
           reduce_warps * warp_size, reduce_warps * warp_size * sizeof(float), stream, reduction);
}

}  // namespace hearth::kernels
