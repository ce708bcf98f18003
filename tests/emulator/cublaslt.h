// The stand-in for cuBLASLt: what its descriptors hold, and the product that they describe.
//
// cublaslt.cpp is the interface, strict about its arguments; cublaslt_matmul.cpp computes.
#pragma once

#include "device/cuda/api/cublaslt.h"

namespace hearth::cublaslt {

struct Context {
  uint64_t products = 0;
};

// Column after column: element (r, c) is at r + c * stride.
struct MatrixLayout {
  DataType type;
  uint64_t rows, columns;
  int64_t stride;
};

struct MatmulDesc {
  Operation a = Operation::none, b = Operation::none;
  Epilogue epilogue = Epilogue::none;
  void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_stride = 0;
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = 7;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

bool has_bias(Epilogue epilogue);
bool has_aux(Epilogue epilogue);
size_t bytes_of(DataType type);

// One call of cublasLtMatmul.
struct Matmul {
  MatmulDesc operation;
  MatrixLayout a_layout, b_layout, d_layout;
  MatrixLayout c_layout;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  float alpha, beta;
  ReductionScheme scheme;
  uint64_t number;  // of the call: what depends on it differs from call to call
};

// Touches device memory: only while work runs.
void compute(const Matmul& p);

}  // namespace hearth::cublaslt
