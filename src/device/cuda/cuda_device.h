// The cuda device: one GPU, its streams, and the operations of a GPT on it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/cuda_ops.h"
#include "device/device.h"

namespace hearth::cuda {

// Throws Error(device) that says what failed and what CUDA says about it.
void require(cudaError_t status, const char* what);

// Host-to-device copies go through pinned memory of our own, so that the caller's memory is free at once and
// the host runs ahead of the GPU: slots are used in turn, each again when its last copy has ended.  The ring
// has room for the batches of several microbatches; only whole weights make the host wait.
class StagingRing {
 public:
  static constexpr size_t slot_bytes = 256 << 10;

  StagingRing();
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  void copy(void* device, const void* host, size_t bytes, cudaStream_t stream);

 private:
  static constexpr int slots = 32;

  void copy_piece(void* device, const void* host, size_t bytes, cudaStream_t stream);

  void* memory_ = nullptr;
  std::array<cudaEvent_t, slots> done_{};
  std::array<bool, slots> used_{};
  int next_ = 0;
};

// The runtime's events, each again when no Event names it any more.  Safe from any thread.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take();
  void give_back(cudaEvent_t event) noexcept;

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const std::string& gemm);
  ~CudaDevice() override;

  std::string kind() const override { return "cuda"; }
  std::string description() const override { return description_; }
  Ops& ops() override { return *ops_; }
  bool host_memory() const override { return false; }
  std::optional<std::string> unsupported(Precision precision) const override;
  std::optional<std::string> unsupported_widths(const ModelWidths& widths) const override;

  uint64_t workspace_bytes(const OpSizes& sizes) const override;
  void reserve_workspace(const OpSizes& sizes) override;
  void* allocate(size_t bytes) override;
  void release(void* address, size_t bytes) noexcept override;
  void copy_in(const Tensor& to, const void* host) override;
  void copy_out(void* host, const Tensor& from) override;
  void synchronize() override;
  Event record(Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  bool reached(const Event& event) override;
  void synchronize(const Event& event) override;
  void enter_thread() override;
  void* allocate_host(size_t bytes) override;
  void release_host(void* address) noexcept override;
  void copy(Stream stream, void* to, const void* from, size_t bytes) override;
  std::string identity() const override { return identity_; }

  cudaStream_t stream(Stream which) const { return streams_[static_cast<size_t>(which)]; }

  void begin_range(const char* name) override;
  void end_range() override;

  std::optional<double> peak_flops(Precision precision) const override;
  std::optional<double> peak_bandwidth() const override;
  std::optional<uint64_t> free_bytes() const override;
  std::unique_ptr<Stopwatch> stopwatch() override;
  uint64_t cache_bytes() const override { return cache_bytes_; }

 private:
  const int index_;
  std::string name_, description_, identity_;
  uint64_t cache_bytes_ = 0;
  std::array<cudaStream_t, 3> streams_{};
  std::shared_ptr<EventPool> events_;
  std::unique_ptr<StagingRing> staging_;
  std::unique_ptr<CudaOps> ops_;
};

}  // namespace hearth::cuda
