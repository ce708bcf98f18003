// AdamW with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2) over a table of runs.
//
//   g = grad clip_scale;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//   master -= lr (m / c1 / (sqrt(v / c2) + eps) + [decay] weight_decay master)
//   weight = round(master);   grad = 0
//
// lr, clip_scale, c1 and c2 are read on the device: the host need not know the norm of the gradient.
// The table, up to 32 runs, travels as an argument of the kernel.  A block updates 2048 neighbouring elements
// of one run, a thread 8 of them: 8 vectors of 16 bytes in flight per thread.  No shared memory.
// Bytes per element: 16 read, 18 written; the aim is 90% of copy bandwidth.
#include "kernels/adamw.h"

#include "kernels/rows.cuh"

namespace hearth::kernels {
namespace {

constexpr int threads = 256;
constexpr int per_thread = pack;
constexpr int64_t per_block = threads * per_thread;
constexpr int max_runs = 32;

// A run as the kernel sees it.  No padding: g++ 12 with -ftrivial-auto-var-init clears the padding of
// structures in arrays at the wrong place.
struct Run {
  float* master;
  float* moment1;
  float* moment2;
  float* grad;
  bf16* weight;
  int64_t count;
  uint32_t first_block;
  float decay;  // weight decay or 0
};
struct Table {
  Run runs[max_runs];
  int64_t count;
};

struct Coefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
};

// What the step adds to the coefficients.
struct StepScalars {
  float learning_rate, clip_scale, inverse_correction1, inverse_correction2;
};

struct Element {
  float master, moment1, moment2, grad;
};

__device__ __forceinline__ void update(Element& e, const Coefficients& c, const StepScalars& s, float decay) {
  const float g = e.grad * s.clip_scale;
  e.moment1 = c.beta1 * e.moment1 + c.one_minus_beta1 * g;
  e.moment2 = c.beta2 * e.moment2 + c.one_minus_beta2 * g * g;
  const float m = e.moment1 * s.inverse_correction1;
  const float v = e.moment2 * s.inverse_correction2;
  e.master -= s.learning_rate * (m / (sqrtf(v) + c.eps) + decay * e.master);
}

// The run of this block.  The answer is the same for all threads.
__device__ __forceinline__ int find_run(const Table& table) {
  int i = 0;
  while (i + 1 < table.count && table.runs[i + 1].first_block <= blockIdx.x)
    ++i;
  return i;
}

// Whether all operands can be moved in vectors.
__device__ __forceinline__ bool aligned(const Run& r) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(r.master) | reinterpret_cast<uintptr_t>(r.moment1) |
                         reinterpret_cast<uintptr_t>(r.moment2) | reinterpret_cast<uintptr_t>(r.grad) |
                         reinterpret_cast<uintptr_t>(r.weight);
  return bits % 16 == 0;
}

__device__ __forceinline__ void load_streaming(float (&to)[per_thread], const float* from) {
  const Vector<float> low = ptx::load16_streaming(from), high = ptx::load16_streaming(from + 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = low[i];
    to[i + 4] = high[i];
  }
}
__device__ __forceinline__ void store_streaming(float* to, const float (&x)[per_thread]) {
  ptx::store16_streaming(to, Vector<float>{{x[0], x[1], x[2], x[3]}});
  ptx::store16_streaming(to + 4, Vector<float>{{x[4], x[5], x[6], x[7]}});
}

__global__ void __launch_bounds__(threads)
    adamw_kernel(const __grid_constant__ Table table, const Coefficients c, const StepParams* step) {
  const Run& run = table.runs[find_run(table)];
  const StepScalars s = {static_cast<float>(step->learning_rate), static_cast<float>(step->clip_scale),
                         1.0f / static_cast<float>(step->bias_correction1),
                         1.0f / static_cast<float>(step->bias_correction2)};
  const int64_t first = static_cast<int64_t>(blockIdx.x - run.first_block) * per_block +
                        static_cast<int64_t>(threadIdx.x) * per_thread;

  if (aligned(run) && first + per_thread <= run.count) {
    float master[per_thread], moment1[per_thread], moment2[per_thread], grad[per_thread];
    load_streaming(master, run.master + first);
    load_streaming(moment1, run.moment1 + first);
    load_streaming(moment2, run.moment2 + first);
    load_streaming(grad, run.grad + first);
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      Element e = {master[i], moment1[i], moment2[i], grad[i]};
      update(e, c, s, run.decay);
      master[i] = e.master;
      moment1[i] = e.moment1;
      moment2[i] = e.moment2;
      grad[i] = 0;
    }
    store_streaming(run.master + first, master);
    store_streaming(run.moment1 + first, moment1);
    store_streaming(run.moment2 + first, moment2);
    store_streaming(run.grad + first, grad);
    if (run.weight != nullptr) store16(run.weight + first, rounded(master));
    return;
  }
  for (int64_t i = first; i < first + per_thread && i < run.count; ++i) {
    Element e = {run.master[i], run.moment1[i], run.moment2[i], run.grad[i]};
    update(e, c, s, run.decay);
    run.master[i] = e.master;
    run.moment1[i] = e.moment1;
    run.moment2[i] = e.moment2;
    run.grad[i] = 0;
    if (run.weight != nullptr) run.weight[i] = ptx::cvt_bf16(e.master);
  }
}

}  // namespace

void adamw(std::span<const AdamWRun> runs, const AdamWConfig& config, const StepParams* step,
           cudaStream_t stream) {
  check(step != nullptr, "adamw needs the step's scalars: call set_step_params first");
  const Coefficients c = {static_cast<float>(config.beta1), static_cast<float>(1 - config.beta1),
                          static_cast<float>(config.beta2), static_cast<float>(1 - config.beta2),
                          static_cast<float>(config.eps)};
  const float weight_decay = static_cast<float>(config.weight_decay);
  Table table = {};
  int64_t blocks = 0;
  const auto start = [&] {
    if (blocks > 0) launch(adamw_kernel, static_cast<unsigned>(blocks), threads, 0, stream, table, c, step);
    table.count = 0;
    blocks = 0;
  };
  for (const AdamWRun& run : runs) {
    if (run.count == 0) continue;
    check(run.master && run.moment1 && run.moment2 && run.grad, "an operand of AdamW is absent");
    const int64_t run_blocks = ceil_div(run.count, per_block);
    constexpr int64_t most_blocks = (int64_t{1} << 31) - 1;
    check(run_blocks <= most_blocks, run.count, " elements need more blocks than a grid can have");
    if (table.count == max_runs || blocks + run_blocks > most_blocks) start();
    table.runs[table.count++] = {run.master,
                                 run.moment1,
                                 run.moment2,
                                 run.grad,
                                 run.weight,
                                 run.count,
                                 static_cast<uint32_t>(blocks),
                                 run.decay ? weight_decay : 0.0f};
    blocks += run_blocks;
  }
  start();
}

}  // namespace hearth::kernels
