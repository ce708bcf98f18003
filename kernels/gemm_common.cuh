// What the two GEMM engines share: how a product is cut into pieces of work, and how partial sums are added.
//
// A piece of work is one tile of C, or its sum over one part of k.  Partial sums go to the workspace,
//
//   partials [splits, m, n] | partial_sums [splits, columns of tiles, m]        fp32
//
// and add_partials() adds them to the gradients in the order of their first index.
#pragma once

#include "kernels/gelu.cuh"
#include "kernels/gemm.h"

namespace hearth::kernels {

struct TileShape {
  int m, n, k;
};

struct Plan {
  uint32_t rows, columns;  // of tiles
  int splits;              // parts of k
  int steps;               // of the tile's k
  int steps_per_split;     // of all but the last
  float* partials;         // when splits > 1
  float* partial_sums;     // for column_sums
};

// What splitting k costs and gains, by a model: a step of a tile takes 1 in each of `blocks_at_once`; writing
// and reading one tile of partial sums takes `partial_cost`, all multiprocessors together.  Constants, so
// that the bits of a result do not depend on the GPU.
struct SplitModel {
  int64_t blocks_at_once;
  int64_t least_steps_per_split;
  double partial_cost;
};

// ---- host (gemm.cu)

void check_args(const GemmArgs& args, const void* workspace);
Plan plan_for(const GemmArgs& args, const TileShape& tile, const SplitModel& model);
size_t workspace_bytes(const GemmArgs& args, const Plan& plan);
// Lays the partial sums of `plan` out in the workspace.
void set_workspace(const GemmArgs& args, Plan& plan, void* workspace);
// accumulator += partials, when k was split; column_sums += partial_sums, when they are wanted.
void add_partials(const GemmArgs& args, const Plan& plan, cudaStream_t stream);

// ---- device

struct Work {
  int split;
  uint32_t tile_row, tile_column;
  int begin, end;  // steps of k; at least one, unless k = 0
};

// Piece `index`, split by split.  Pieces are worked on about in the order of their index: walking down the
// columns of groups of `group_rows` rows of tiles, so those that are under way together touch few rows of A
// and B.
template <uint32_t group_rows>
__device__ __forceinline__ Work work_of(uint32_t index, const Plan& plan) {
  const uint32_t tiles = plan.rows * plan.columns;
  Work work;
  work.split = static_cast<int>(index / tiles);
  const uint32_t tile = index % tiles;
  const uint32_t group = tile / (group_rows * plan.columns);
  const uint32_t first_row = group * group_rows;
  const uint32_t rows = plan.rows - first_row < group_rows ? plan.rows - first_row : group_rows;
  const uint32_t in_group = tile - first_row * plan.columns;
  work.tile_row = first_row + in_group % rows;
  work.tile_column = in_group / rows;
  work.begin = work.split * plan.steps_per_split;
  work.end = plan.steps - work.begin < plan.steps_per_split ? plan.steps : work.begin + plan.steps_per_split;
  return work;
}

// The input of an epilogue that reads nothing.
struct NoInput {};

// gelu of two rounded pre-activations, rounded.
__device__ __forceinline__ uint32_t gelu_of_pair(uint32_t pre) {
  return ptx::cvt_bf16x2(gelu(low_half(pre)), gelu(high_half(pre)));
}

}  // namespace hearth::kernels
