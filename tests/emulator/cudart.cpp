// The stand-in for the CUDA runtime: memory, streams, events, device properties.
//
// Work given to a stream waits in a queue until somebody synchronises with it, and copies read their host
// memory only then: a missing synchronisation, or a host buffer reused too early, shows.  Every stream is
// independent of every other, the default stream too (as if all were created with cudaStreamNonBlocking).
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "emulator/device_memory.h"
#include "emulator/emulator.h"
#include "emulator/launch.h"
#include "emulator/streams.h"
#include "emulator/tensor_map.h"

using namespace hearth::emulator;

// Operations are asked again until they say that they are done:
// some wait for another stream or another process.
struct CUstream_st {
  std::deque<std::function<bool()>> queue;
  uint64_t enqueued = 0;
  uint64_t completed = 0;
};
struct CUevent_st {
  cudaStream_t stream = nullptr;  // null: never recorded
  uint64_t position = 0;          // complete when the stream has completed so many operations
  std::chrono::steady_clock::time_point time;
};

namespace {

struct Runtime {
  std::recursive_mutex mutex;
  CUstream_st default_stream;
  std::list<std::unique_ptr<CUstream_st>> streams;
  std::unordered_map<const void*, size_t> granted_shared;
  std::unordered_map<void*, std::unique_ptr<char[]>> pinned;
  cudaError_t last_error = cudaSuccess;
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

thread_local int current_device = 0;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) runtime().last_error = error;
  return error;
}

// Every call starts with this: nothing works without a device.
cudaError_t no_device() {
  return options().present ? cudaSuccess : remember(cudaErrorNoDevice);
}

CUstream_st& resolve(cudaStream_t stream) {
  return stream ? *stream : runtime().default_stream;
}

void enqueue_polled_operation(cudaStream_t stream, std::function<bool()> operation) {
  const std::lock_guard lock(runtime().mutex);
  CUstream_st& s = resolve(stream);
  s.queue.push_back(std::move(operation));
  ++s.enqueued;
}

void enqueue_operation(cudaStream_t stream, std::function<void()> operation) {
  enqueue_polled_operation(stream, [operation = std::move(operation)] {
    operation();
    return true;
  });
}

// A failed kernel poisons a real context.  Here everything queued is dropped and the next test can go on.
void drop_all_work() {
  Runtime& r = runtime();
  auto drop = [](CUstream_st& s) {
    s.queue.clear();
    s.completed = s.enqueued;
  };
  drop(r.default_stream);
  for (auto& stream : r.streams)
    drop(*stream);
}

// Runs what can run of the stream's first `position` operations; true when they are complete.
bool advance(CUstream_st& stream, uint64_t position) {
  while (stream.completed < position) {
    if (!stream.queue.front()()) return false;
    stream.queue.pop_front();
    ++stream.completed;
  }
  return true;
}

bool try_to_run(CUstream_st& stream, uint64_t position) {
  const std::lock_guard lock(runtime().mutex);
  if (stream.completed >= position) return true;
  DeviceMemory& memory = device_memory();
  memory.open();
  try {
    const bool complete = advance(stream, position);
    memory.close();
    return complete;
  } catch (...) {
    memory.close();
    drop_all_work();
    throw;
  }
}

// Waits until `position` of the stream's operations are complete.
// Other threads may use the runtime meanwhile.
void run_until(CUstream_st& stream, uint64_t position) {
  for (std::chrono::microseconds pause(50); !try_to_run(stream, position);
       pause = std::min(pause * 2, std::chrono::microseconds(1000)))
    std::this_thread::sleep_for(pause);
}

void run_everything() {
  Runtime& r = runtime();
  // The youngest stream first: work that should have waited for an older one shows.
  std::vector<CUstream_st*> streams;
  {
    const std::lock_guard lock(r.mutex);
    for (auto stream = r.streams.rbegin(); stream != r.streams.rend(); ++stream)
      streams.push_back(stream->get());
  }
  for (CUstream_st* stream : streams)
    run_until(*stream, stream->enqueued);
  run_until(r.default_stream, r.default_stream.enqueued);
}

// What the host does when it waits: until then nothing of the stream may have happened.
void wait_for(CUstream_st& stream, uint64_t position) {
  if (stream.completed < position) count_host_wait();
  run_until(stream, position);
}

bool is_device_range(const void* address, size_t bytes) {
  return bytes == 0 || device_memory().find(address).contains(address, bytes);
}

cudaError_t check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  if (to_device != device_memory().covers(to) || from_device != device_memory().covers(from))
    return bytes ? cudaErrorInvalidValue : cudaSuccess;
  if ((to_device && !is_device_range(to, bytes)) || (from_device && !is_device_range(from, bytes)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

size_t shared_per_block_optin() {
  const int c = options().capability;
  return c == 80 || c == 87 ? 163 * 1024 : c < 90 || c >= 120 ? 99 * 1024 : 227 * 1024;
}

}  // namespace

namespace hearth::emulator {

void enqueue(cudaStream_t stream, Kernel kernel) {
  const std::lock_guard lock(runtime().mutex);
  if (!options().present) throw Failure("a kernel was launched without a device");
  const auto granted = runtime().granted_shared.find(kernel.function);
  const cudaError_t error =
      validate(kernel, granted == runtime().granted_shared.end() ? 48 * 1024 : granted->second);
  if (error != cudaSuccess)
    throw Failure(std::string("a kernel was launched with ") + cudaGetErrorString(error));
  enqueue_operation(stream, [kernel = std::move(kernel)] { run(kernel); });
}

void enqueue_work(cudaStream_t stream, std::function<void()> work) {
  if (!options().present) throw Failure("work was queued without a device");
  enqueue_operation(stream, std::move(work));
}

void enqueue_polled(cudaStream_t stream, std::function<bool()> operation) {
  enqueue_polled_operation(stream, std::move(operation));
}

}  // namespace hearth::emulator

// ---- device

cudaError_t cudaGetDeviceCount(int* count) {
  if (!options().present) return remember(cudaErrorNoDevice);  // leaves *count alone, as CUDA does
  *count = options().devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  if (cudaError_t error = no_device()) return error;
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = no_device()) return error;
  if (device < 0 || device >= options().devices) return remember(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (cudaError_t error = no_device()) return error;
  if (device < 0 || device >= options().devices) return remember(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated GPU");
  p->totalGlobalMem = options().memory_bytes;
  p->sharedMemPerBlock = 48 * 1024;
  p->sharedMemPerBlockOptin = shared_per_block_optin();
  p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin + 1024;
  p->regsPerBlock = 65536;
  p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  const bool differs = device == 0 && options().first_capability != 0;
  const int capability = differs ? options().first_capability : options().capability;
  p->major = capability / 10;
  p->minor = capability % 10;
  p->multiProcessorCount = options().multiprocessors;
  p->memoryBusWidth = 64;
  p->l2CacheSize = 1 << 20;
  p->pciBusID = 1 + device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return remember(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
  if (cudaError_t error = no_device()) return error;
  count_host_wait();
  run_everything();
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (cudaError_t error = no_device()) return error;
  *total_bytes = options().memory_bytes;
  *free_bytes = options().memory_bytes - std::min(options().memory_bytes, device_memory().used());
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = options().present ? 13000 : 0;
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() {
  return std::exchange(runtime().last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return runtime().last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorStubLibrary:
      return "cudaErrorStubLibrary";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
  }
  return "an unknown error";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return cudaGetErrorName(error);
  }
}

// ---- memory

cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (cudaError_t error = no_device()) return error;
  if (bytes == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  *address = device_memory().allocate(bytes, options().memory_bytes, options().poison);
  return *address ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* address) {
  if (cudaError_t error = no_device()) return error;
  if (!address) return cudaSuccess;
  run_everything();  // cudaFree waits for the device
  return device_memory().release(address) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  if (cudaError_t error = no_device()) return error;
  auto memory = std::make_unique<char[]>(bytes ? bytes : 1);
  *address = memory.get();
  const std::lock_guard lock(runtime().mutex);
  runtime().pinned[*address] = std::move(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
  if (!address) return cudaSuccess;
  run_everything();
  const std::lock_guard lock(runtime().mutex);
  return runtime().pinned.erase(address) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (cudaError_t error = no_device()) return error;
  if (cudaError_t error = check_copy(to, from, bytes, kind)) return remember(error);
  enqueue_operation(stream, [=] {
    if (bytes) std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  if (cudaError_t error = no_device()) return error;
  if (!is_device_range(address, bytes)) return remember(cudaErrorInvalidValue);
  enqueue_operation(stream, [=] {
    if (bytes) std::memset(address, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  if (cudaError_t error = cudaMemsetAsync(address, value, bytes, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (cudaError_t error = no_device()) return error;
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.push_back(std::make_unique<CUstream_st>());
  *stream = runtime().streams.back().get();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  run_until(*stream, stream->enqueued);
  return cudaSuccess;  // the object stays: events may still name it
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (cudaError_t error = no_device()) return error;
  CUstream_st& s = resolve(stream);
  wait_for(s, s.enqueued);
  return cudaSuccess;
}
// A loop of queries makes progress, one operation a query.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUstream_st& s = resolve(stream);
  const std::lock_guard lock(runtime().mutex);
  if (s.completed == s.enqueued) return cudaSuccess;
  try_to_run(s, s.completed + 1);
  return cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (event->stream)
    enqueue_polled_operation(
        stream, [from = event->stream, position = event->position] { return advance(*from, position); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (cudaError_t error = no_device()) return error;
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (event->stream) run_until(*event->stream, event->position);  // its record may be queued
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(runtime().mutex);
  CUstream_st& s = resolve(stream);
  enqueue_operation(stream, [event] { event->time = std::chrono::steady_clock::now(); });
  event->stream = &s;
  event->position = s.enqueued;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  if (event->stream) wait_for(*event->stream, event->position);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event) return remember(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(runtime().mutex);
  if (!event->stream || event->stream->completed >= event->position) return cudaSuccess;
  try_to_run(*event->stream, event->stream->completed + 1);
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (cudaEvent_t event : {start, end}) {
    if (!event || !event->stream) return remember(cudaErrorInvalidResourceHandle);
    if (event->stream->completed < event->position) return remember(cudaErrorNotReady);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

// ---- functions

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  if (cudaError_t error = no_device()) return error;
  if (value < 0 || static_cast<size_t>(value) > shared_per_block_optin())
    return remember(cudaErrorInvalidValue);
  const std::lock_guard lock(runtime().mutex);
  runtime().granted_shared[function] = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (cudaError_t error = no_device()) return error;
  const std::lock_guard lock(runtime().mutex);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  const auto granted = runtime().granted_shared.find(function);
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(granted == runtime().granted_shared.end() ? 48 * 1024 : granted->second);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  if (cudaError_t error = no_device()) return error;
  *function = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0 ? tensor_map_encoder() : nullptr;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
