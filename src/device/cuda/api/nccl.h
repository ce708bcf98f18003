// What Hearth uses of NCCL's C API, declared by ourselves and called through a table that is filled when the
// program runs: it starts where NCCL is not installed, and is built where its header is not.
//
// Names and numbers are those of <nccl.h> without its prefix; where that header exists, nccl_header.cpp
// checks them.
#pragma once

#include <climits>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

typedef struct CUstream_st* cudaStream_t;

namespace hearth::nccl {

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class DataType : int { uint8 = 1, int32 = 2, int64 = 4, float32 = 7, float64 = 8, bfloat16 = 9 };

enum class Op : int { sum = 0, max = 2 };

struct UniqueId {
  char internal[128];
};

struct CommObject;
using Comm = CommObject*;

// The fields that NCCL 2.18 knows, and one more where that version has padding; `version` tells newer ones.
struct Config {
  static constexpr int undefined = INT_MIN;
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = undefined;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
  int traffic_class = undefined;
};

// ncclCommSplit came with 2.18.
constexpr int minimum_version = 21800;
// "2.28.9"
std::string version_text(int version);

struct Api {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_split)(Comm comm, int color, int key, Comm* split, Config* config);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void* send, void* receive, size_t count, DataType type, Op op, Comm comm,
                       cudaStream_t stream);
  Result (*reduce_scatter)(const void* send, void* receive, size_t receive_count, DataType type, Op op,
                           Comm comm, cudaStream_t stream);
  Result (*all_gather)(const void* send, void* receive, size_t send_count, DataType type, Comm comm,
                       cudaStream_t stream);
  Result (*broadcast)(const void* send, void* receive, size_t count, DataType type, int root, Comm comm,
                      cudaStream_t stream);
  Result (*send)(const void* from, size_t count, DataType type, int peer, Comm comm, cudaStream_t stream);
  Result (*receive)(void* to, size_t count, DataType type, int peer, Comm comm, cudaStream_t stream);

  int version = 0;
};

// Fills `api` with what `symbol` finds under NCCL's names.  Returns why the library cannot be used, if so.
std::optional<std::string> bind(const std::function<void*(const char* name)>& symbol, Api& api);

// Opens libnccl.so.2 (again: the same one) and binds it.
std::optional<std::string> open(Api& api);

}  // namespace hearth::nccl
