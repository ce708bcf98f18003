// What Hearth uses of cuBLASLt, declared by ourselves, as a table of functions that is filled at run time.
//
// So Hearth builds where no CUDA is installed, and starts where the library is missing.  Values and layouts
// are those of NVIDIA's cublasLt.h (cublaslt_header.cpp compares them where there is one).  Matrices are
// stored column after column.  In the emulated build tests/emulator/cublaslt.cpp fills the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

typedef struct CUstream_st* cudaStream_t;

namespace hearth::cublaslt {

enum class Status : int {
  success = 0,
  not_initialized = 1,
  invalid_value = 7,
  execution_failed = 13,
  not_supported = 15,
};
enum class DataType : int { f32 = 0, bf16 = 14 };
enum class ComputeType : int { f32 = 68 };
enum class Operation : int32_t { none = 0, transpose = 1 };

enum class DescAttribute : int {
  transpose_a = 3,   // Operation
  transpose_b = 4,   // Operation
  epilogue = 7,      // Epilogue
  bias_pointer = 8,  // of D's type; bias: as long as D has rows; bgrad_b: as long as D has columns
  aux_pointer = 11,  // gelu's argument, of D's type
  aux_stride = 12,   // int64_t, its leading dimension, a multiple of 8
};

// D = epilogue(alpha op(A) op(B) + beta C), in this order: bias, activation.
enum class Epilogue : uint32_t {
  none = 1,
  bias = 4,
  gelu = 32,
  gelu_bias = gelu | bias,
  gelu_aux = gelu | 128,  // aux = gelu's argument
  gelu_aux_bias = gelu_aux | bias,
  dgelu = 64 | 128,  // times gelu'(aux)
  bgrad_b = 512,     // bias = the sums of op(B)^T's rows over k
};

enum class PreferenceAttribute : int {
  workspace_bytes = 1,    // uint64_t, the most an algorithm may need; 0 at first
  reduction_schemes = 3,  // uint32_t, a mask of ReductionScheme; all at first
  alignment_a = 5,        // uint32_t, bytes that all addresses are multiples of; 256 at first
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8,
};

// How parts of a sum over k that different blocks compute are added up.
enum class ReductionScheme : uint32_t {
  none = 0,          // there are no parts
  in_place = 1,      // in the output
  compute_type = 2,  // fp32 parts in the workspace, added in a step of its own
  output_type = 4,   // rounded parts in the workspace
};

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

struct Context;
struct MatmulDesc;
struct MatrixLayout;
struct Preference;

// The functions, each named after its cublasLt...; all are null when `missing` is not empty.
struct Api {
  Status (*create)(Context**) = nullptr;
  Status (*destroy)(Context*) = nullptr;
  size_t (*get_version)() = nullptr;
  const char* (*get_status_string)(Status) = nullptr;
  Status (*matmul_desc_create)(MatmulDesc**, ComputeType, DataType scale) = nullptr;
  Status (*matmul_desc_destroy)(MatmulDesc*) = nullptr;
  Status (*matmul_desc_set_attribute)(MatmulDesc*, DescAttribute, const void*, size_t bytes) = nullptr;
  Status (*matrix_layout_create)(MatrixLayout**, DataType, uint64_t rows, uint64_t columns,
                                 int64_t leading_dimension) = nullptr;
  Status (*matrix_layout_destroy)(MatrixLayout*) = nullptr;
  Status (*matmul_preference_create)(Preference**) = nullptr;
  Status (*matmul_preference_destroy)(Preference*) = nullptr;
  Status (*matmul_preference_set_attribute)(Preference*, PreferenceAttribute, const void*,
                                            size_t bytes) = nullptr;
  Status (*matmul_algo_get_heuristic)(Context*, MatmulDesc*, MatrixLayout* a, MatrixLayout* b,
                                      MatrixLayout* c, MatrixLayout* d, Preference*, int wanted,
                                      HeuristicResult*, int* found) = nullptr;
  Status (*matmul)(Context*, MatmulDesc*, const void* alpha, const void* a, MatrixLayout*, const void* b,
                   MatrixLayout*, const void* beta, const void* c, MatrixLayout*, void* d, MatrixLayout*,
                   const Algorithm*, void* workspace, size_t workspace_bytes, cudaStream_t) = nullptr;

  std::string missing;  // why there is no library, in one clause
};

// Opens the library for good: the newest version that starts with this machine's driver.
Api load();
// The same with other names, each tried in turn: the first that starts.  When none does, the first that has
// every function, so that its own error can be shown; and `missing` says why where there is none either.
Api load_from(std::span<const char* const> names);
// The same with another way to open one: its functions, or `missing`.
Api load_from(std::span<const char* const> names, const std::function<Api(const char* name)>& open);

}  // namespace hearth::cublaslt
