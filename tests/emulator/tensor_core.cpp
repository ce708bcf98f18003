// ldmatrix, stmatrix and mma.sync: what the lanes' registers hold (PTX ISA, "Matrix Fragments").
#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/block.h"

namespace hearth::emulator {
namespace {

constexpr uint32_t all_lanes = 0xffffffffu;

float low_float(uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
float high_float(uint32_t pair) {
  return std::bit_cast<float>(pair & 0xffff0000u);
}

struct MatrixMove : WarpOperation {
  int matrices;
  bool transposed;
  uint32_t row_address;
  uint32_t* registers;
  Site site;
};

// The 8 rows of matrix m, whose addresses were given by lanes 8m .. 8m+7.
void collect_rows(WarpOperation* const* lanes, int matrix, Access access, uint16_t* (&rows)[8]) {
  Block& block = running_block();
  int rows_in_bank[8] = {};
  for (int i = 0; i < 8; ++i) {
    const int lane = matrix * 8 + i;
    const auto* move = static_cast<MatrixMove*>(lanes[lane]);
    if (move->row_address % 16)
      block.fail("ldmatrix/stmatrix row address is not a multiple of 16", move->site);
    rows[i] = reinterpret_cast<uint16_t*>(
        block.shared_range(move->row_address, 16, "ldmatrix/stmatrix", move->site));
    if (block.checker)
      block.checker->shared(block.current->warp * lanes_per_warp + lane, move->row_address, 16, access,
                            Proxy::generic, Place(move->site));
    ++rows_in_bank[move->row_address / 16 % 8];
  }
  block.counted.ldmatrix += 1;
  block.counted.ldmatrix_conflicts += *std::max_element(rows_in_bank, rows_in_bank + 8) - 1;
}

void load_matrices(WarpOperation* const* lanes, uint32_t) {
  const auto* first = static_cast<MatrixMove*>(lanes[0]);
  for (int m = 0; m < first->matrices; ++m) {
    uint16_t* rows[8];
    collect_rows(lanes, m, Access::read, rows);
    for (int lane = 0; lane < lanes_per_warp; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const uint32_t low = first->transposed ? rows[2 * t][g] : rows[g][2 * t];
      const uint32_t high = first->transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
      static_cast<MatrixMove*>(lanes[lane])->registers[m] = low | high << 16;
    }
  }
}

void store_matrices(WarpOperation* const* lanes, uint32_t) {
  const auto* first = static_cast<MatrixMove*>(lanes[0]);
  for (int m = 0; m < first->matrices; ++m) {
    uint16_t* rows[8];
    collect_rows(lanes, m, Access::write, rows);
    for (int lane = 0; lane < lanes_per_warp; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const uint32_t pair = static_cast<MatrixMove*>(lanes[lane])->registers[m];
      (first->transposed ? rows[2 * t][g] : rows[g][2 * t]) = static_cast<uint16_t>(pair);
      (first->transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1]) = static_cast<uint16_t>(pair >> 16);
    }
  }
}

void require_full_warp(const char* instruction, Site site) {
  Block& block = running_block();
  if (block.warps[block.current->warp].lanes < lanes_per_warp)
    block.fail(std::string(instruction) + " in a warp of fewer than 32 threads", site);
}

// C += A B in fp32, k ascending.  No FMA, so that every machine gives the same bits.
typedef float Row __attribute__((vector_size(8 * sizeof(float))));
__attribute__((target_clones("avx2", "default"))) void multiply(const float (&a)[16][16], const Row (&b)[16],
                                                                Row (&c)[16]) {
  for (int i = 0; i < 16; ++i) {
    Row sum = c[i];
    for (int k = 0; k < 16; ++k)
      sum += a[i][k] * b[k];
    c[i] = sum;
  }
}

struct Mma : WarpOperation {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

void execute_mma(WarpOperation* const* lanes, uint32_t) {
  float a[16][16];
  Row b[16], c[16];
  for (int lane = 0; lane < lanes_per_warp; ++lane) {
    const auto* operands = static_cast<Mma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i % 2), column = 2 * t + 8 * (i / 2);
      a[row][column] = low_float(operands->a[i]);
      a[row][column + 1] = high_float(operands->a[i]);
      c[g + 8 * (i / 2)][2 * t + i % 2] = operands->d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + 8 * i][g] = low_float(operands->b[i]);
      b[2 * t + 8 * i + 1][g] = high_float(operands->b[i]);
    }
  }
  multiply(a, b, c);
  for (int lane = 0; lane < lanes_per_warp; ++lane) {
    const auto* operands = static_cast<Mma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i)
      operands->d[i] = c[g + 8 * (i / 2)][2 * t + i % 2];
  }
  ++running_block().counted.mma;
}

}  // namespace

void ldmatrix(int matrices, bool transposed, uint32_t row_address, uint32_t* registers, Site site) {
  require_full_warp("ldmatrix", site);
  MatrixMove move{{load_matrices}, matrices, transposed, row_address, registers, site};
  warp_collective(all_lanes, move, site);
}

void stmatrix(int matrices, bool transposed, uint32_t row_address, const uint32_t* registers, Site site) {
  require_full_warp("stmatrix", site);
  MatrixMove move{
      {store_matrices}, matrices, transposed, row_address, const_cast<uint32_t*>(registers), site};
  warp_collective(all_lanes, move, site);
}

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, Site site) {
  require_full_warp("mma.sync", site);
  Mma operands{{execute_mma}, d, a, b};
  warp_collective(all_lanes, operands, site);
}

}  // namespace hearth::emulator
