// Compares cublaslt.h with NVIDIA's header, where that and the headers of a real CUDA are installed.  Nothing
// here runs.
#include <cuda_runtime_api.h>

#if defined(CUDART_VERSION) && __has_include(<cublasLt.h>)

#include <cublasLt.h>

#include <type_traits>

#include "device/cuda/api/cublaslt.h"

namespace hearth::cublaslt {
namespace {

template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return sizeof(Ours) == sizeof(Theirs) && static_cast<int64_t>(ours) == static_cast<int64_t>(theirs);
}

static_assert(same(Status::success, CUBLAS_STATUS_SUCCESS));
static_assert(same(Status::not_initialized, CUBLAS_STATUS_NOT_INITIALIZED));
static_assert(same(Status::invalid_value, CUBLAS_STATUS_INVALID_VALUE));
static_assert(same(Status::execution_failed, CUBLAS_STATUS_EXECUTION_FAILED));
static_assert(same(Status::not_supported, CUBLAS_STATUS_NOT_SUPPORTED));
static_assert(same(DataType::f32, CUDA_R_32F));
static_assert(same(DataType::bf16, CUDA_R_16BF));
static_assert(same(ComputeType::f32, CUBLAS_COMPUTE_32F));
static_assert(same(Operation::none, CUBLAS_OP_N));
static_assert(same(Operation::transpose, CUBLAS_OP_T));

static_assert(same(DescAttribute::transpose_a, CUBLASLT_MATMUL_DESC_TRANSA));
static_assert(same(DescAttribute::transpose_b, CUBLASLT_MATMUL_DESC_TRANSB));
static_assert(same(DescAttribute::epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE));
static_assert(same(DescAttribute::bias_pointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
static_assert(same(DescAttribute::aux_pointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
static_assert(same(DescAttribute::aux_stride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD));

static_assert(same(Epilogue::none, CUBLASLT_EPILOGUE_DEFAULT));
static_assert(same(Epilogue::bias, CUBLASLT_EPILOGUE_BIAS));
static_assert(same(Epilogue::gelu, CUBLASLT_EPILOGUE_GELU));
static_assert(same(Epilogue::gelu_bias, CUBLASLT_EPILOGUE_GELU_BIAS));
static_assert(same(Epilogue::gelu_aux, CUBLASLT_EPILOGUE_GELU_AUX));
static_assert(same(Epilogue::gelu_aux_bias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
static_assert(same(Epilogue::dgelu, CUBLASLT_EPILOGUE_DGELU));
static_assert(same(Epilogue::bgrad_b, CUBLASLT_EPILOGUE_BGRADB));

static_assert(same(PreferenceAttribute::workspace_bytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
static_assert(same(PreferenceAttribute::reduction_schemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
static_assert(same(PreferenceAttribute::alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
static_assert(same(PreferenceAttribute::alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
static_assert(same(PreferenceAttribute::alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
static_assert(same(PreferenceAttribute::alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));

static_assert(same(ReductionScheme::none, CUBLASLT_REDUCTION_SCHEME_NONE));
static_assert(same(ReductionScheme::in_place, CUBLASLT_REDUCTION_SCHEME_INPLACE));
static_assert(same(ReductionScheme::compute_type, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
static_assert(same(ReductionScheme::output_type, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(HeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(HeuristicResult, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

// The same parameters, but for what an enumeration or an opaque struct is called.
template <class Ours, class Theirs>
constexpr bool passed_alike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> ==
                                          std::is_pointer_v<Theirs>&& std::is_floating_point_v<Ours> ==
                                          std::is_floating_point_v<Theirs>;
template <class Ours, class Theirs>
constexpr bool callable_as = false;
template <class R, class... P, class S, class... Q>
constexpr bool callable_as<R (*)(P...), S(Q...)> = [] {
  if constexpr (sizeof...(P) != sizeof...(Q))
    return false;
  else
    return passed_alike<R, S> && (passed_alike<P, Q> && ...);
}();

static_assert(callable_as<decltype(Api::create), decltype(cublasLtCreate)>);
static_assert(callable_as<decltype(Api::destroy), decltype(cublasLtDestroy)>);
static_assert(callable_as<decltype(Api::get_version), decltype(cublasLtGetVersion)>);
static_assert(callable_as<decltype(Api::get_status_string), decltype(cublasLtGetStatusString)>);
static_assert(callable_as<decltype(Api::matmul_desc_create), decltype(cublasLtMatmulDescCreate)>);
static_assert(callable_as<decltype(Api::matmul_desc_destroy), decltype(cublasLtMatmulDescDestroy)>);
static_assert(
    callable_as<decltype(Api::matmul_desc_set_attribute), decltype(cublasLtMatmulDescSetAttribute)>);
static_assert(callable_as<decltype(Api::matrix_layout_create), decltype(cublasLtMatrixLayoutCreate)>);
static_assert(callable_as<decltype(Api::matrix_layout_destroy), decltype(cublasLtMatrixLayoutDestroy)>);
static_assert(callable_as<decltype(Api::matmul_preference_create), decltype(cublasLtMatmulPreferenceCreate)>);
static_assert(
    callable_as<decltype(Api::matmul_preference_destroy), decltype(cublasLtMatmulPreferenceDestroy)>);
static_assert(callable_as<decltype(Api::matmul_preference_set_attribute),
                          decltype(cublasLtMatmulPreferenceSetAttribute)>);
static_assert(
    callable_as<decltype(Api::matmul_algo_get_heuristic), decltype(cublasLtMatmulAlgoGetHeuristic)>);
static_assert(callable_as<decltype(Api::matmul), decltype(cublasLtMatmul)>);

}  // namespace
}  // namespace hearth::cublaslt

#endif
