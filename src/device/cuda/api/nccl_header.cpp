// Compares nccl.h with NVIDIA's header, where that and the headers of a real CUDA are installed.  Nothing
// here runs.
#include <cuda_runtime_api.h>

#if defined(CUDART_VERSION) && __has_include(<nccl.h>)

#include <nccl.h>

#include <cstddef>

#include <type_traits>

#include "device/cuda/api/nccl.h"

namespace hearth::nccl {
namespace {

template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(same(Result::success, ncclSuccess) &&
              same(Result::unhandled_cuda_error, ncclUnhandledCudaError) &&
              same(Result::system_error, ncclSystemError) &&
              same(Result::internal_error, ncclInternalError) &&
              same(Result::invalid_argument, ncclInvalidArgument) &&
              same(Result::invalid_usage, ncclInvalidUsage) && same(Result::remote_error, ncclRemoteError) &&
              same(Result::in_progress, ncclInProgress));
static_assert(same(DataType::uint8, ncclUint8) && same(DataType::int32, ncclInt32) &&
              same(DataType::int64, ncclInt64) && same(DataType::float32, ncclFloat32) &&
              same(DataType::float64, ncclFloat64) && same(DataType::bfloat16, ncclBfloat16));
static_assert(same(Op::sum, ncclSum) && same(Op::max, ncclMax));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(Result) == sizeof(ncclResult_t) &&
              sizeof(DataType) == sizeof(ncclDataType_t) && sizeof(Op) == sizeof(ncclRedOp_t));
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs) &&
              offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare) &&
              sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(NCCL_VERSION(2, 18, 0) == minimum_version);

// The same parameters: compared as functions of (pointers, integers), since the types have other names.
template <class Ours, class Theirs>
struct alike : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool value =
      sizeof(R) == sizeof(S) &&
      ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
};
static_assert(alike<decltype(Api::get_version), decltype(&ncclGetVersion)>::value);
static_assert(alike<decltype(Api::get_unique_id), decltype(&ncclGetUniqueId)>::value);
static_assert(alike<decltype(Api::comm_init_rank_config), decltype(&ncclCommInitRankConfig)>::value);
static_assert(alike<decltype(Api::comm_split), decltype(&ncclCommSplit)>::value);
static_assert(alike<decltype(Api::comm_finalize), decltype(&ncclCommFinalize)>::value);
static_assert(alike<decltype(Api::comm_destroy), decltype(&ncclCommDestroy)>::value);
static_assert(alike<decltype(Api::comm_abort), decltype(&ncclCommAbort)>::value);
static_assert(alike<decltype(Api::comm_get_async_error), decltype(&ncclCommGetAsyncError)>::value);
static_assert(alike<decltype(Api::get_error_string), decltype(&ncclGetErrorString)>::value);
static_assert(alike<decltype(Api::get_last_error), decltype(&ncclGetLastError)>::value);
static_assert(alike<decltype(Api::group_start), decltype(&ncclGroupStart)>::value);
static_assert(alike<decltype(Api::group_end), decltype(&ncclGroupEnd)>::value);
static_assert(alike<decltype(Api::all_reduce), decltype(&ncclAllReduce)>::value);
static_assert(alike<decltype(Api::reduce_scatter), decltype(&ncclReduceScatter)>::value);
static_assert(alike<decltype(Api::all_gather), decltype(&ncclAllGather)>::value);
static_assert(alike<decltype(Api::broadcast), decltype(&ncclBroadcast)>::value);
static_assert(alike<decltype(Api::send), decltype(&ncclSend)>::value);
static_assert(alike<decltype(Api::receive), decltype(&ncclRecv)>::value);

}  // namespace
}  // namespace hearth::nccl
#endif
