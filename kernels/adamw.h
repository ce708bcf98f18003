// Launcher of kernels/adamw.cu.
#pragma once

#include <cstdint>
#include <span>

#include "device/ops.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

// A run of `count` elements that AdamW updates alike.
struct AdamWRun {
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  float* grad = nullptr;   // cleared
  bf16* weight = nullptr;  // receives the rounded master; may be absent
  int64_t count = 0;
  bool decay = false;
};

// The operation of the same name in device/ops.h.  `runs` is host memory, free again on return; `step` is
// device memory.  Fastest when all addresses are multiples of 16.
void adamw(std::span<const AdamWRun> runs, const AdamWConfig& config, const StepParams* step,
           cudaStream_t stream);

}  // namespace hearth::kernels
