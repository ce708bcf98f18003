#include "device/cuda/api/nccl.h"

#include <type_traits>

#include "base/error.h"

namespace hearth::nccl {

std::string version_text(int version) {
  return text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::optional<std::string> bind(const std::function<void*(const char*)>& symbol, Api& api) {
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* address = symbol(name);
    if (!address && missing.empty()) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  // The version first: an old library is named as that, not by what it lacks.
  find("ncclGetVersion", api.get_version);
  if (!missing.empty() || api.get_version(&api.version) != Result::success)
    return "libnccl.so.2 does not tell its version";
  if (api.version < minimum_version)
    return text("libnccl.so.2 is NCCL ", version_text(api.version), ", older than ",
                version_text(minimum_version));
  find("ncclGetUniqueId", api.get_unique_id);
  find("ncclCommInitRankConfig", api.comm_init_rank_config);
  find("ncclCommSplit", api.comm_split);
  find("ncclCommFinalize", api.comm_finalize);
  find("ncclCommDestroy", api.comm_destroy);
  find("ncclCommAbort", api.comm_abort);
  find("ncclCommGetAsyncError", api.comm_get_async_error);
  find("ncclGetErrorString", api.get_error_string);
  find("ncclGetLastError", api.get_last_error);
  find("ncclGroupStart", api.group_start);
  find("ncclGroupEnd", api.group_end);
  find("ncclAllReduce", api.all_reduce);
  find("ncclReduceScatter", api.reduce_scatter);
  find("ncclAllGather", api.all_gather);
  find("ncclBroadcast", api.broadcast);
  find("ncclSend", api.send);
  find("ncclRecv", api.receive);
  if (!missing.empty()) return text("libnccl.so.2 (NCCL ", version_text(api.version), ") has no ", missing);
  return std::nullopt;
}

}  // namespace hearth::nccl
