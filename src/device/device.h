// Device: where tensors live and operations run.
//
// Three kinds: "reference" (plain loops, slow, the oracle of every test), "cpu" (fast) and "cuda".  Work is
// ordered by streams; a host device runs everything at once, so its streams and events do nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace hearth {

class Ops;

// Operations run on `compute`; collectives on `communication`; host copies of the next batch on `copy`.
enum class Stream : uint8_t { compute, communication, copy };

// The widths of a model's tensors on one rank: what an implementation may have limits for.
struct ModelWidths {
  int64_t channels = 0;
  int64_t head_size = 0;
  int64_t ffn = 0;    // hidden width of the MLP
  int64_t vocab = 0;  // columns of the logits, padding included
};

// What decides how much memory the operations of a training step need besides their operands, on one rank.
struct OpSizes {
  struct Linear {
    int64_t outputs, inputs, rows;
  };
  std::vector<Linear> linears;
  int64_t norm_rows = 0, channels = 0;
  int64_t summed = 0;  // elements of the largest tensor that is summed
};

// A point in a stream.  Copies name the same point; it is kept as long as one of them lives.
struct Event {
  std::shared_ptr<void> point;  // null on host devices, where everything has happened already
};

// Measures the work that the compute stream is given between start() and stop().  seconds() waits for it.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  virtual double seconds() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string kind() const = 0;         // "reference" | "cpu" | "cuda"
  virtual std::string description() const = 0;  // "cpu, 2 threads, AVX-512 with bf16"
  virtual Ops& ops() = 0;
  // Whether tensors of this device can be read and written by the host directly.
  virtual bool host_memory() const = 0;
  // Whether the device can compute in this precision; if not, why.
  virtual std::optional<std::string> unsupported(Precision precision) const = 0;
  // Whether the operations can run a model of these widths; if not,
  // a sentence that says which and what to do.
  virtual std::optional<std::string> unsupported_widths(const ModelWidths&) const { return std::nullopt; }

  // The memory that a step's operations will need besides their operands, and taking it: without that they
  // take it when they first need it.  A host device's operations use the heap.
  virtual uint64_t workspace_bytes(const OpSizes&) const { return 0; }
  virtual void reserve_workspace(const OpSizes&) {}

  // Uninitialised memory at a multiple of 256 bytes.  Throws Error(device) saying how much was asked for and
  // is free.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* address, size_t bytes) noexcept = 0;

  // Ordered on the compute stream; `host` is free again when this returns.
  virtual void copy_in(const Tensor& to, const void* host) = 0;
  // Returns when `host` holds the values.
  virtual void copy_out(void* host, const Tensor& from) = 0;
  // Waits for all streams.
  virtual void synchronize() {}

  virtual Event record(Stream) { return {}; }
  // Work given to `stream` after this call starts after the event.
  virtual void wait(Stream, const Event&) {}
  // Whether the work before the event has been done, and waiting for it on the host.  From any thread.
  virtual bool reached(const Event&) { return true; }
  virtual void synchronize(const Event&) {}
  // A thread other than the one that made the device calls this before anything else of it.
  virtual void enter_thread() {}

  // Host memory that copy() moves without the host's help.
  virtual void* allocate_host(size_t bytes) { return ::operator new(bytes); }
  virtual void release_host(void* address) noexcept { ::operator delete(address); }
  // Between allocate_host() memory and device memory, in either direction, ordered on `stream`: both must
  // stay valid until the stream has come past it.
  virtual void copy(Stream, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

  // Which accelerator of this host it is ("0000:3b:00.0"); empty when it is none.
  virtual std::string identity() const { return ""; }

  // For profilers; see ProfileRange.
  virtual void begin_range(const char*) {}
  virtual void end_range() {}

  // Dense peak of the datasheet in FLOP/s for the MFU column; unknown for CPUs.
  virtual std::optional<double> peak_flops(Precision) const { return std::nullopt; }
  // The same for memory, in bytes read and written per second.
  virtual std::optional<double> peak_bandwidth() const { return std::nullopt; }
  virtual std::optional<uint64_t> free_bytes() const { return std::nullopt; }

  // For benchmarks: a clock (the host's, unless the device has its own), and the size of the last cache
  // before memory, 0 when unknown.
  virtual std::unique_ptr<Stopwatch> stopwatch();
  virtual uint64_t cache_bytes() const;
};

// Names what is given to the device while it lives, for profilers.  Ranges nest; a host device has none.
class ProfileRange {
 public:
  ProfileRange(Device& device, const char* name) : device_(device) { device_.begin_range(name); }
  ~ProfileRange() { device_.end_range(); }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  Device& device_;
};

// Owns a piece of device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t bytes)
      : device_(&device), data_(bytes ? device.allocate(bytes) : nullptr), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_) device_->release(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What `[device]` of a config asks for.
struct DeviceConfig {
  std::string kind = "auto";    // auto | cuda | cpu | reference
  std::string gemm = "native";  // the CUDA GEMM engine: native | cublaslt
  int threads = 0;              // CPU threads; 0 = all cores this process may use
  int local_rank = 0;           // of this process on its machine: the GPU it takes (several may share one)
};

std::unique_ptr<Device> make_reference_device();
std::unique_ptr<Device> make_cpu_device(int threads);
std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config);
// "CUDA 13.0 for sm_80 sm_90a", or "no CUDA".
std::string cuda_build();
// Why the process with this local_rank can use no GPU, or nothing when it can.
std::optional<std::string> cuda_unavailable(int local_rank = 0);
// Whether make_device would take a GPU.
bool runs_on_gpu(const DeviceConfig& config);
// The device that `config` names.  auto takes a usable GPU, else the CPU.  Throws Error(usage) for an unknown
// kind and Error(device) when a GPU is asked for and none can be used.
std::unique_ptr<Device> make_device(const DeviceConfig& config);

}  // namespace hearth
