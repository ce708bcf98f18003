// The choice between the GEMM engines, and what they share: plans, checks,
// the ordered addition of partial sums.
#include <algorithm>

#include "kernels/gemm_common.cuh"

namespace hearth::kernels {
namespace {

constexpr int reduce_threads = 256;

// to [rows, columns] += sum of `parts` matrices from [parts, rows, columns], in their order.  A thread adds 4
// neighbours; columns is a multiple of 4.
__global__ void __launch_bounds__(reduce_threads)
    add_parts_kernel(const float* from, int64_t parts, int64_t rows, int64_t columns, float* to,
                     int64_t stride) {
  const int64_t index = global_thread_index() * 4;
  if (index >= rows * columns) return;
  Vector<float> sum = load16(from + index);
  for (int64_t part = 1; part < parts; ++part) {
    const Vector<float> more = load16(from + part * rows * columns + index);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[i] += more[i];
  }
  float* target = to + index / columns * stride + index % columns;
  Vector<float> total = load16(target);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    total[i] += sum[i];
  store16(target, total);
}

__global__ void __launch_bounds__(reduce_threads)
    gelu_kernel(const bf16* pre, int64_t pre_stride, bf16* y, int64_t y_stride, int64_t rows,
                int64_t columns) {
  const int64_t index = global_thread_index() * 8;
  if (index >= rows * columns) return;
  const int64_t row = index / columns, column = index % columns;
  const uint32_t* from = reinterpret_cast<const uint32_t*>(pre + row * pre_stride + column);
  Vector<uint32_t> pairs = ptx::load16_streaming(from);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = gelu_of_pair(pairs[i]);
  store16(reinterpret_cast<uint32_t*>(y + row * y_stride + column), pairs);
}

void add_parts(const float* from, int64_t parts, int64_t rows, int64_t columns, float* to, int64_t stride,
               cudaStream_t stream) {
  launch(add_parts_kernel, grid_of(ceil_div(rows * columns, 4 * reduce_threads)), reduce_threads, 0, stream,
         from, parts, rows, columns, to, stride);
}

// The number of parts that takes the least time by the model.
int splits_for(const GemmArgs& p, int64_t tiles, int64_t steps, const SplitModel& model) {
  if (p.product != Product::weight_gradient) return 1;
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(steps / model.least_steps_per_split, 64));
  int64_t best = 1;
  double best_time = 0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    const int64_t waves = ceil_div(tiles * splits, model.blocks_at_once);
    const double partials = splits > 1 ? static_cast<double>(tiles * splits) * model.partial_cost : 0;
    const double time = static_cast<double>(waves * ceil_div(steps, splits)) + partials;
    if (splits == 1 || time < best_time) best = splits, best_time = time;
  }
  return static_cast<int>(best);
}

// Floats of the workspace.
int64_t partials_size(const GemmArgs& p, const Plan& plan) {
  return plan.splits > 1 ? plan.splits * p.m * p.n : 0;
}
int64_t partial_sums_size(const GemmArgs& p, const Plan& plan) {
  return p.column_sums ? int64_t{plan.splits} * plan.columns * p.m : 0;
}

// Which engine computes a product: a matter of its shape and the GPU.  The questions to the runtime are
// answered from memory, so nothing is kept here.
bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  check_cuda(cudaGetDevice(&device), "name the current GPU");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "tell its capability");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "tell its capability");
  return major == 9 && minor == 0;
}
bool takes_sm90(const GemmArgs& p) {
  return p.tile == GemmTile::automatic && gemm_sm90_pays(p) && gemm_sm90_supports(p) && is_hopper();
}

}  // namespace

Plan plan_for(const GemmArgs& p, const TileShape& tile, const SplitModel& model) {
  Plan plan = {};
  const int64_t rows = ceil_div(p.m, tile.m), columns = ceil_div(p.n, tile.n), steps = ceil_div(p.k, tile.k);
  grid_of(rows * columns);  // checks the number, which must fit in 32 bits
  check(steps < (int64_t{1} << 30), "gemm: a sum over ", p.k, " elements is too long");
  plan.rows = static_cast<uint32_t>(rows);
  plan.columns = static_cast<uint32_t>(columns);
  plan.steps = static_cast<int>(steps);
  const int64_t wanted = p.splits > 0 ? p.splits : splits_for(p, rows * columns, steps, model);
  plan.steps_per_split = static_cast<int>(ceil_div(steps, wanted));
  plan.splits = plan.steps ? static_cast<int>(ceil_div(steps, plan.steps_per_split)) : 1;  // none is empty
  return plan;
}

size_t workspace_bytes(const GemmArgs& p, const Plan& plan) {
  return static_cast<size_t>(partials_size(p, plan) + partial_sums_size(p, plan)) * sizeof(float);
}

void set_workspace(const GemmArgs& p, Plan& plan, void* workspace) {
  check(workspace || workspace_bytes(p, plan) == 0, "gemm: the workspace is missing");
  plan.partials = static_cast<float*>(workspace);
  plan.partial_sums = plan.partials + partials_size(p, plan);
}

void add_partials(const GemmArgs& p, const Plan& plan, cudaStream_t stream) {
  if (plan.splits > 1) add_parts(plan.partials, plan.splits, p.m, p.n, p.accumulator, p.c_stride, stream);
  if (p.column_sums)
    add_parts(plan.partial_sums, int64_t{plan.splits} * plan.columns, 1, p.m, p.column_sums, p.m, stream);
}

void check_args(const GemmArgs& p, const void* workspace) {
  const bool gradient = p.product == Product::weight_gradient;
  check(p.m >= 0 && p.n % 8 == 0 && p.n > 0 && p.k >= 0 && (gradient ? p.m : p.k) % 8 == 0,
        "gemm: extents must be multiples of 8, but for the number of tokens, not ", p.m, ", ", p.n, ", ",
        p.k);
  check(p.a_stride % 8 == 0 && p.b_stride % 8 == 0 && p.c_stride % 8 == 0 && p.pre_stride % 8 == 0,
        "gemm: row strides must be multiples of 8, not ", p.a_stride, ", ", p.b_stride, ", ", p.c_stride,
        ", ", p.pre_stride);
  check(p.a && p.b && (gradient ? p.accumulator != nullptr : p.c != nullptr), "gemm: an operand is missing");
  for (const void* address :
       {static_cast<const void*>(p.a), static_cast<const void*>(p.b), static_cast<const void*>(p.c),
        static_cast<const void*>(p.bias), static_cast<const void*>(p.pre),
        static_cast<const void*>(p.factor_pre), static_cast<const void*>(p.accumulator),
        static_cast<const void*>(p.column_sums), workspace})
    check(reinterpret_cast<uintptr_t>(address) % 16 == 0, "gemm: an operand is not aligned to 16 bytes");
  const bool forward = p.product == Product::forward;
  check(forward || (!p.bias && !p.gelu && !p.pre), "gemm: bias and gelu belong to the forward product");
  check(p.gelu || !p.pre, "gemm: the pre-activation is stored only with gelu");
  check(p.product == Product::input_gradient || !p.factor_pre, "gemm: gelu' belongs to the input gradient");
  check(gradient || (!p.accumulator && !p.column_sums && p.splits <= 1),
        "gemm: only the weight gradient accumulates");
}

size_t gemm_workspace_bytes(const GemmArgs& p) {
  if (p.product != Product::weight_gradient) return 0;
  return takes_sm90(p) ? gemm_sm90_workspace_bytes(p) : gemm_sm80_workspace_bytes(p);
}

void gemm(const GemmArgs& p, void* workspace, cudaStream_t stream) {
  if (takes_sm90(p))
    gemm_sm90(p, workspace, stream);
  else
    gemm_sm80(p, workspace, stream);
}

void gelu_forward(const bf16* pre, int64_t pre_stride, bf16* y, int64_t y_stride, int64_t rows,
                  int64_t columns, cudaStream_t stream) {
  if (rows == 0) return;
  check(columns % 8 == 0 && pre_stride % 8 == 0 && y_stride % 8 == 0 &&
            reinterpret_cast<uintptr_t>(pre) % 16 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0,
        "gelu: columns and row strides must be multiples of 8, addresses of 16");
  launch(gelu_kernel, grid_of(ceil_div(rows * columns, 8 * reduce_threads)), reduce_threads, 0, stream, pre,
         pre_stride, y, y_stride, rows, columns);
}

}  // namespace hearth::kernels
