// The stand-in for NCCL: its C API between processes on emulated GPUs.
//
// It keeps NCCL's rules, and is strict about them.  Communicators are made and split in the background; a
// call on one returns "in progress", and what it gave to the stream is there only when the caller has asked
// until it is done.  An operation runs when its turn in the stream comes, meets those of the other ranks by
// its place among the communicator's calls, its type and its size, and never ends when they differ or when a
// peer is lost: the error shows in ncclCommGetAsyncError, and ncclCommAbort ends it.  A send ends when it is
// received. Sums are taken from the last rank to the first, in bf16 with a rounding each time; a maximum
// drops NaNs.
//
// HEARTH_EMULATED_NCCL in the environment: "absent", or the version to play (22809).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <span>

#include "base/error.h"
#include "comm/worker.h"
#include "device/cuda/api/nccl.h"
#include "emulator/device_memory.h"
#include "emulator/launch.h"
#include "emulator/nccl_mesh.h"
#include "tensor/dtype.h"

namespace hearth::nccl {

using emulator::NcclMesh;
using emulator::NcclMessage;
using Bytes = std::vector<std::byte>;

struct CommObject {
  std::shared_ptr<NcclMesh> mesh;
  std::atomic<bool> aborted = false;
  std::atomic<Result> error = Result::success;  // that came later
  std::shared_future<void> background;          // what is in progress elsewhere
  std::function<void()> deferred;               // what the last call gives to the stream, once it is done
  int questions = 0;                            // that "in progress" still answers
  Config config;
  std::string gpu;
  bool first = false;  // made from a unique id
  uint64_t collectives = 0, splits = 0;
  std::map<std::pair<int, int>, uint64_t> transfers;
  std::unique_ptr<Worker> worker = std::make_unique<Worker>();

  bool busy() const { return deferred || background.valid(); }
};

namespace {

struct Work {
  enum class Kind : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };
  Kind kind;
  const void* in;
  void* out;
  size_t in_bytes, out_bytes;
  size_t count;
  DataType type;
  Op op = Op::sum;
  int peer = -1;  // or root
  uint64_t tag = 0;
};

bool point_to_point(const Work& work) {
  return work.kind == Work::Kind::send || work.kind == Work::Kind::receive;
}

size_t width_of(DataType type) {
  switch (type) {
    case DataType::uint8:
      return 1;
    case DataType::bfloat16:
      return 2;
    case DataType::int32:
    case DataType::float32:
      return 4;
    case DataType::int64:
    case DataType::float64:
      return 8;
  }
  return 0;
}

uint64_t mix(uint64_t a, uint64_t b) {
  a = (a ^ b) * 0x9e3779b97f4a7c15;
  a = (a ^ a >> 30) * 0xbf58476d1ce4e5b9;
  return a ^ a >> 27;
}

// ---- arithmetic

template <class T>
T combine(T a, T b, Op op) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(combine(static_cast<float>(a), static_cast<float>(b), op));
  else if (op == Op::sum)
    return static_cast<T>(a + b);
  else if constexpr (std::is_floating_point_v<T>)
    return std::fmax(a, b);
  else
    return std::max(a, b);
}

template <class T>
void reduce(std::span<const Bytes> parts, Bytes& out, Op op) {
  for (size_t i = 0; i < out.size() / sizeof(T); ++i) {
    const auto at = [&](size_t rank) {
      T value;
      std::memcpy(&value, parts[rank].data() + i * sizeof(T), sizeof(T));
      return value;
    };
    T sum = at(parts.size() - 1);
    for (size_t rank = parts.size() - 1; rank-- > 0;)
      sum = combine(sum, at(rank), op);
    std::memcpy(out.data() + i * sizeof(T), &sum, sizeof(T));
  }
}

void reduce(DataType type, std::span<const Bytes> parts, Bytes& out, Op op) {
  switch (type) {
    case DataType::uint8:
      return reduce<uint8_t>(parts, out, op);
    case DataType::int32:
      return reduce<int32_t>(parts, out, op);
    case DataType::int64:
      return reduce<int64_t>(parts, out, op);
    case DataType::float32:
      return reduce<float>(parts, out, op);
    case DataType::float64:
      return reduce<double>(parts, out, op);
    case DataType::bfloat16:
      return reduce<bf16>(parts, out, op);
  }
}

// ---- operations, on the communicator's thread

// Sends part p of `in` (all of it when it has one part) to rank p; returns what each rank sent here.
std::vector<Bytes> all_to_all(NcclMesh& mesh, const Work& work, Bytes& in, bool divided) {
  const size_t ranks = static_cast<size_t>(mesh.size()), rank = static_cast<size_t>(mesh.rank());
  const size_t bytes = divided ? in.size() / ranks : in.size();
  std::vector<Bytes> arrived(ranks, Bytes(bytes));
  const auto part = [&](size_t p) { return in.data() + (divided ? p * bytes : 0); };
  std::vector<NcclMessage> messages;
  for (size_t p = 0; p < ranks; ++p) {
    if (p == rank) {
      arrived[p].assign(part(p), part(p) + bytes);
      continue;
    }
    messages.push_back({static_cast<int>(p), work.tag, true, part(p), bytes});
    messages.push_back({static_cast<int>(p), work.tag, false, arrived[p].data(), bytes});
  }
  mesh.exchange(messages);
  return arrived;
}

void run_collective(NcclMesh& mesh, const Work& work, Bytes& in, Bytes& out) {
  if (work.kind == Work::Kind::broadcast) {
    std::vector<NcclMessage> messages;
    const bool root = mesh.rank() == work.peer;
    if (root) out = in;
    for (int p = 0; p < mesh.size(); ++p)
      if (root ? p != work.peer : p == work.peer)
        messages.push_back({p, work.tag, root, out.data(), out.size()});
    return mesh.exchange(messages);
  }
  const std::vector<Bytes> parts = all_to_all(mesh, work, in, work.kind == Work::Kind::reduce_scatter);
  if (work.kind != Work::Kind::all_gather) return reduce(work.type, parts, out, work.op);
  for (size_t p = 0; p < parts.size(); ++p)
    std::memcpy(out.data() + p * parts[p].size(), parts[p].data(), parts[p].size());
}

// What a group of calls on one communicator becomes in the stream.
struct Batch {
  CommObject* comm;
  std::vector<Work> work;
  std::vector<Bytes> in, out;
  std::shared_future<void> done;
};

void run_batch(Batch& batch) {
  NcclMesh& mesh = *batch.comm->mesh;
  std::vector<NcclMessage> transfers;
  for (size_t i = 0; i < batch.work.size(); ++i) {
    const Work& work = batch.work[i];
    if (work.kind == Work::Kind::send)
      transfers.push_back({work.peer, work.tag, true, batch.in[i].data(), batch.in[i].size()});
    else if (work.kind == Work::Kind::receive)
      transfers.push_back({work.peer, work.tag, false, batch.out[i].data(), batch.out[i].size()});
    else
      run_collective(mesh, work, batch.in[i], batch.out[i]);
  }
  if (!transfers.empty()) mesh.exchange(transfers);
}

// The stream asks until the batch is done.
bool poll(const std::shared_ptr<Batch>& batch) {
  CommObject& comm = *batch->comm;
  if (comm.aborted) return true;
  if (!batch->done.valid()) {
    for (const Work& work : batch->work) {
      const auto* in = static_cast<const std::byte*>(work.in);
      batch->in.emplace_back(in, in + work.in_bytes);
      batch->out.emplace_back(work.out_bytes);
    }
    batch->done = comm.worker->give([batch, &comm] {
      try {
        run_batch(*batch);
      } catch (const std::exception&) {
        if (!comm.aborted) comm.error = Result::remote_error;
        throw;
      }
    });
  }
  if (batch->done.wait_for(std::chrono::seconds(0)) != std::future_status::ready ||
      comm.error != Result::success)
    return false;
  for (size_t i = 0; i < batch->work.size(); ++i)
    if (!batch->out[i].empty()) std::memcpy(batch->work[i].out, batch->out[i].data(), batch->out[i].size());
  return true;
}

// ---- calls

thread_local int group_depth = 0;
struct Called {
  CommObject* comm;
  cudaStream_t stream;
  Work work;
};
thread_local std::vector<Called> group_calls;
thread_local const char* last_error = "";

Result refuse(Result result, const char* why) {
  last_error = why;
  return result;
}

bool on_the_gpu(const void* address, size_t bytes) {
  return emulator::device_memory().find(address).contains(address, bytes);
}

void give_to_stream(std::vector<Called> calls) {
  auto batch = std::make_shared<Batch>();
  CommObject* comm = batch->comm = calls.front().comm;
  const cudaStream_t stream = calls.front().stream;
  for (Called& called : calls)
    batch->work.push_back(called.work);
  comm->deferred = [batch, stream] { emulator::enqueue_polled(stream, [batch] { return poll(batch); }); };
  comm->questions = 1;
}

// Operations meet by their number among the calls, their kind, type and size.
uint64_t tag_of(CommObject& comm, const Work& work) {
  uint64_t tag = mix(mix(static_cast<uint64_t>(work.type), work.count), static_cast<uint64_t>(work.op));
  if (!point_to_point(work))
    return mix(mix(mix(tag, static_cast<uint64_t>(work.kind)), static_cast<uint64_t>(work.peer)),
               ++comm.collectives);
  const bool sends = work.kind == Work::Kind::send;
  const int from = sends ? comm.mesh->rank() : work.peer, to = sends ? work.peer : comm.mesh->rank();
  return mix(mix(tag, 1000), ++comm.transfers[{from, to}]);
}

Result issue(Comm comm, cudaStream_t stream, Work work) {
  if (!comm || !stream) return refuse(Result::invalid_argument, "no communicator, or the default stream");
  if (comm->aborted) return refuse(Result::invalid_usage, "the communicator was aborted");
  if (comm->busy()) return refuse(Result::invalid_usage, "the call before is still in progress");
  if (comm->error != Result::success) return comm->error;
  if (work.peer >= comm->mesh->size()) return refuse(Result::invalid_argument, "no such rank");
  if (width_of(work.type) == 0) return refuse(Result::invalid_argument, "no such type");
  if (work.count == 0) return Result::success;
  if (!on_the_gpu(work.in ? work.in : work.out, std::max(work.in_bytes, size_t{1})) ||
      !on_the_gpu(work.out ? work.out : work.in, std::max(work.out_bytes, size_t{1})))
    return refuse(Result::invalid_argument, "a buffer is not the GPU's");
  work.tag = tag_of(*comm, work);
  if (group_depth > 0) {
    group_calls.push_back({comm, stream, work});
    return Result::success;
  }
  give_to_stream({{comm, stream, work}});
  return Result::in_progress;
}

Result group_start() {
  ++group_depth;
  return Result::success;
}

Result group_end() {
  if (group_depth == 0) return refuse(Result::invalid_usage, "the end of no group");
  if (--group_depth > 0) return Result::success;
  const std::vector<Called> calls = std::move(group_calls);
  group_calls.clear();
  if (calls.empty()) return Result::success;
  for (const Called& called : calls)
    if (called.comm != calls.front().comm || called.stream != calls.front().stream)
      return refuse(Result::invalid_usage, "the stand-in takes one communicator and stream in a group");
  give_to_stream(calls);
  return Result::in_progress;
}

Result all_reduce(const void* send, void* receive, size_t count, DataType type, Op op, Comm comm,
                  cudaStream_t stream) {
  const size_t bytes = count * width_of(type);
  return issue(comm, stream, {Work::Kind::all_reduce, send, receive, bytes, bytes, count, type, op});
}

Result reduce_scatter(const void* send, void* receive, size_t count, DataType type, Op op, Comm comm,
                      cudaStream_t stream) {
  const size_t bytes = count * width_of(type), ranks = static_cast<size_t>(comm->mesh->size());
  return issue(comm, stream,
               {Work::Kind::reduce_scatter, send, receive, bytes * ranks, bytes, count, type, op});
}

Result all_gather(const void* send, void* receive, size_t count, DataType type, Comm comm,
                  cudaStream_t stream) {
  const size_t bytes = count * width_of(type), ranks = static_cast<size_t>(comm->mesh->size());
  return issue(comm, stream, {Work::Kind::all_gather, send, receive, bytes, bytes * ranks, count, type});
}

Result broadcast(const void* send, void* receive, size_t count, DataType type, int root, Comm comm,
                 cudaStream_t stream) {
  const size_t bytes = count * width_of(type);
  return issue(comm, stream,
               {Work::Kind::broadcast, send, receive, bytes, bytes, count, type, Op::sum, root});
}

Result send(const void* from, size_t count, DataType type, int peer, Comm comm, cudaStream_t stream) {
  return issue(comm, stream,
               {Work::Kind::send, from, nullptr, count * width_of(type), 0, count, type, Op::sum, peer});
}

Result receive(void* to, size_t count, DataType type, int peer, Comm comm, cudaStream_t stream) {
  return issue(comm, stream,
               {Work::Kind::receive, nullptr, to, 0, count * width_of(type), count, type, Op::sum, peer});
}

// ---- communicators

template <class T>
std::vector<T> gather(NcclMesh& mesh, const T& mine, uint64_t tag) {
  Bytes in(sizeof(T));
  std::memcpy(in.data(), &mine, sizeof(T));
  Work work{};
  work.tag = tag;
  std::vector<T> all;
  for (const Bytes& part : all_to_all(mesh, work, in, false)) {
    T value;
    std::memcpy(&value, part.data(), sizeof(T));
    all.push_back(value);
  }
  return all;
}

// Connects, and refuses two ranks on one GPU as NCCL does.
void start_connecting(CommObject& comm) {
  comm.background = comm.worker->give([&comm] {
    try {
      comm.mesh->connect();
      std::array<char, 32> gpu{};
      comm.gpu.copy(gpu.data(), gpu.size() - 1);
      const auto all = gather(*comm.mesh, gpu, 1);
      for (size_t a = 0; a < all.size(); ++a)
        for (size_t b = 0; b < a; ++b)
          if (all[a] == all[b]) comm.error = Result::invalid_usage;
    } catch (const std::exception&) {
      if (!comm.aborted) comm.error = Result::remote_error;
    }
  });
}

std::string gpu_of_this_thread() {
  int device = 0;
  cudaGetDevice(&device);
  return std::to_string(device);
}

Result get_version(int* version) {
  const char* played = std::getenv("HEARTH_EMULATED_NCCL");
  *version = played ? std::atoi(played) : 22809;
  return Result::success;
}

Result get_unique_id(UniqueId* id) {
  std::string folder = (std::filesystem::temp_directory_path() / "nccl-stand-in-XXXXXX").string();
  if (folder.size() >= sizeof id->internal || !::mkdtemp(folder.data())) return Result::system_error;
  *id = {};
  folder.copy(id->internal, folder.size());
  return Result::success;
}

Result comm_init_rank_config(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (!config || config->magic != 0xcafebeef || config->size < sizeof(Config) || rank < 0 || rank >= ranks)
    return refuse(Result::invalid_argument, "a bad configuration or rank");
  *comm = new CommObject;
  (*comm)->config = *config;
  (*comm)->first = true;
  (*comm)->gpu = gpu_of_this_thread();
  (*comm)->mesh = std::make_shared<NcclMesh>(std::string(id.internal) + "/all", rank, ranks);
  start_connecting(**comm);
  if (config->blocking == 0) return Result::in_progress;
  (*comm)->background.wait();
  return (*comm)->error;
}

struct Choice {
  int color, key, rank;
};

// `split` is set when `comm`'s part is done.
Result comm_split(Comm comm, int color, int key, Comm* split, Config* config) {
  if (comm->aborted || comm->busy())
    return refuse(Result::invalid_usage, "the call before is still in progress");
  if (comm->error != Result::success) return comm->error;
  *split = nullptr;
  const uint64_t number = ++comm->splits;
  comm->background = comm->worker->give([=, c = config ? *config : comm->config] {
    try {
      auto all = gather(*comm->mesh, Choice{color, key, comm->mesh->rank()}, mix(2, number));
      std::erase_if(all, [&](const Choice& other) { return other.color != color; });
      std::stable_sort(all.begin(), all.end(),
                       [](const Choice& a, const Choice& b) { return a.key < b.key; });
      if (color < 0) return;
      const auto place = std::find_if(all.begin(), all.end(),
                                      [&](const Choice& other) { return other.rank == comm->mesh->rank(); });
      auto* part = new CommObject;
      part->config = c;
      part->gpu = comm->gpu;
      part->mesh =
          std::make_shared<NcclMesh>(text(comm->mesh->folder(), "-", number, "-", color),
                                     static_cast<int>(place - all.begin()), static_cast<int>(all.size()));
      start_connecting(*part);
      *split = part;
    } catch (const std::exception&) {
      if (!comm->aborted) comm->error = Result::remote_error;
    }
  });
  return Result::in_progress;
}

Result comm_get_async_error(Comm comm, Result* error) {
  *error = comm->error;
  if (*error != Result::success) return Result::success;
  if (comm->background.valid()) {
    if (comm->background.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
      comm->background = {};
    else
      *error = Result::in_progress;
    if (comm->error != Result::success) *error = comm->error;
  }
  if (comm->deferred && comm->questions-- > 0) {
    *error = Result::in_progress;
  } else if (comm->deferred) {
    comm->deferred();
    comm->deferred = nullptr;
  }
  return Result::success;
}

void remove_folder(const CommObject& comm) {
  std::error_code ignored;
  if (comm.first && comm.mesh->rank() == 0)
    std::filesystem::remove_all(std::filesystem::path(comm.mesh->folder()).parent_path(), ignored);
}

Result comm_finalize(Comm comm) {
  if (comm->aborted || comm->busy())
    return refuse(Result::invalid_usage, "the call before is still in progress");
  comm->background = comm->worker->give([comm] {
    try {
      gather(*comm->mesh, 0, 3);
      remove_folder(*comm);
    } catch (const std::exception&) {
      if (!comm->aborted) comm->error = Result::remote_error;
    }
  });
  return Result::in_progress;
}

// The object stays, for what the stream may still ask.
Result comm_destroy(Comm comm) {
  comm->aborted = true;
  comm->worker.reset();
  comm->mesh.reset();
  return Result::success;
}

// What waits, in the stream and in the background, ends.  The object stays: both may still look at it.
Result comm_abort(Comm comm) {
  comm->aborted = true;
  comm->mesh->abort();
  remove_folder(*comm);
  return Result::success;
}

const char* get_error_string(Result result) {
  switch (result) {
    case Result::success:
      return "no error";
    case Result::unhandled_cuda_error:
      return "unhandled cuda error";
    case Result::system_error:
      return "unhandled system error";
    case Result::internal_error:
      return "internal error";
    case Result::invalid_argument:
      return "invalid argument";
    case Result::invalid_usage:
      return "invalid usage";
    case Result::remote_error:
      return "remote process exited or there was a network error";
    case Result::in_progress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* get_last_error(Comm) {
  return last_error;
}

}  // namespace

std::optional<std::string> open(Api& api) {
  const char* played = std::getenv("HEARTH_EMULATED_NCCL");
  if (played && std::string(played) == "absent")
    return "libnccl.so.2 cannot be opened (libnccl.so.2: cannot open shared object file: No such file or "
           "directory)";
  const std::map<std::string, void*> symbols = {
      {"ncclGetVersion", reinterpret_cast<void*>(&get_version)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(&get_unique_id)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(&comm_init_rank_config)},
      {"ncclCommSplit", reinterpret_cast<void*>(&comm_split)},
      {"ncclCommFinalize", reinterpret_cast<void*>(&comm_finalize)},
      {"ncclCommDestroy", reinterpret_cast<void*>(&comm_destroy)},
      {"ncclCommAbort", reinterpret_cast<void*>(&comm_abort)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&comm_get_async_error)},
      {"ncclGetErrorString", reinterpret_cast<void*>(&get_error_string)},
      {"ncclGetLastError", reinterpret_cast<void*>(&get_last_error)},
      {"ncclGroupStart", reinterpret_cast<void*>(&group_start)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&group_end)},
      {"ncclAllReduce", reinterpret_cast<void*>(&all_reduce)},
      {"ncclReduceScatter", reinterpret_cast<void*>(&reduce_scatter)},
      {"ncclAllGather", reinterpret_cast<void*>(&all_gather)},
      {"ncclBroadcast", reinterpret_cast<void*>(&broadcast)},
      {"ncclSend", reinterpret_cast<void*>(&send)},
      {"ncclRecv", reinterpret_cast<void*>(&receive)},
  };
  return bind(
      [&](const char* name) {
        const auto found = symbols.find(name);
        return found == symbols.end() ? nullptr : found->second;
      },
      api);
}

}  // namespace hearth::nccl
