// StagedCommunicator: lends a host communicator to a device whose memory the host cannot reach.
//
// A tensor is copied into pinned host memory on the communication stream, after the compute stream's work so
// far; a thread waits for the copy and starts the host's operation; wait() ends it and puts the copy back on
// the compute stream.  So the host waits in wait(), as with host devices, but several ranks may share a GPU,
// and no vendor's library is needed.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/worker.h"
#include "device/device.h"

namespace hearth {

// Pinned host memory, used again.
class HostStaging {
 public:
  explicit HostStaging(Device& device) : device_(device) {}
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  // At least so many bytes; they come back when nobody holds the pointer any more.
  std::shared_ptr<std::byte> take(int64_t bytes);

 private:
  struct Block {
    void* memory;
    size_t bytes;
    bool taken;
  };
  void give_back(void* memory);

  Device& device_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, Device& device);
  ~StagedCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Request all_reduce(const Tensor& inout, Reduce op) override;
  Request reduce_scatter(const Tensor& in, const Tensor& out) override;
  Request all_gather(const Tensor& in, const Tensor& out) override;
  Request broadcast(const Tensor& inout, int root) override;
  Request exchange(std::span<const Transfer> transfers) override;
  void barrier() override { host_->barrier(); }
  void abort() noexcept override { host_->abort(); }

 private:
  struct Staged {
    Tensor device;  // what it stands for
    Tensor host;
    std::shared_ptr<std::byte> memory;
  };
  Staged stage(const Tensor& tensor);
  Staged part_of(const Staged& whole, const Tensor& tensor) const;
  // Copies what leaves, runs `operation` on the host, then copies what has arrived.
  Request start(const std::vector<Staged>& leaving, std::vector<Staged> arriving,
                std::function<Request()> operation);

  Device& device_;
  HostStaging staging_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace hearth
