// What each PTX instruction of kernels/ptx.cuh and kernels/ptx_sm90.cuh does with given data.
//
// The emulator is only as good as its picture of the hardware.  So the same kernels, compiled for the GPU and
// for the emulator, write down what every instruction did with the same random data, and scripts/gpu_check.sh
// compares the two files bit for bit.  Where a plain formula says what must come out,
// tests/kernels/conformance_test.cpp checks the emulator's part by it.  All numbers are small integers, so
// that no sum is rounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hearth::conformance {

// An instruction, what it was given and what came out; each as its kernel lays it out (see conformance.cu).
struct Record {
  std::string name;
  std::vector<uint32_t> input;
  std::vector<uint32_t> output;
};

// Shapes of the TMA records: boxes of 8 rows from a matrix [rows, columns] of bf16 with a gap after each row.
struct TmaShape {
  static constexpr int rows = 21, columns = 72, stride = 80;
  static constexpr int box_rows = 8, box_columns = 64;
};
struct Corner {
  int row, column;
};
// Inside, over each edge, over a corner, wholly outside.
inline const std::vector<Corner>& tma_corners() {
  static const std::vector<Corner> corners = {{0, 0},   {5, 8},  {16, 24}, {-3, -16},
                                              {19, 64}, {24, 0}, {0, 72}};
  return corners;
}

// N of the wgmma records.
inline const std::vector<int>& wgmma_widths() {
  static const std::vector<int> widths = {64, 256};
  return widths;
}
// A product of the wgmma records has k = 64 in four steps: A is one tile of 64 x 64, B one of N x 64.
constexpr int wgmma_k = 64;

// Runs everything on GPU 0.  sm_90a's instructions only where `hopper`.
std::vector<Record> run(bool hopper);

}  // namespace hearth::conformance
