// Counts what goes through a communicator and what a device allocates.
#pragma once

#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/ops.h"

namespace hearth::testing {

// Bytes of the tensors that the rank gives to collectives, as AxisTraffic::payload counts them.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int64_t payload = 0;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Request all_reduce(const Tensor& t, Reduce op) override {
    payload += t.bytes();
    return inner_->all_reduce(t, op);
  }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    payload += in.bytes();
    return inner_->reduce_scatter(in, out);
  }
  Request all_gather(const Tensor& in, const Tensor& out) override {
    payload += out.bytes();
    return inner_->all_gather(in, out);
  }
  Request broadcast(const Tensor& t, int root) override { return inner_->broadcast(t, root); }
  Request exchange(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers)
      if (t.direction == Transfer::Direction::send) payload += t.tensor.bytes();
    return inner_->exchange(transfers);
  }
  void barrier() override { inner_->barrier(); }

 private:
  std::unique_ptr<Communicator> inner_;
};

// The reference device.
class CountingDevice final : public Device {
 public:
  size_t allocated = 0;
  std::string ranges;  // "step(forward()backward())"

  std::string kind() const override { return inner_->kind(); }
  std::string description() const override { return inner_->description(); }
  Ops& ops() override { return inner_->ops(); }
  bool host_memory() const override { return inner_->host_memory(); }
  std::optional<std::string> unsupported(Precision precision) const override {
    return inner_->unsupported(precision);
  }
  void* allocate(size_t bytes) override {
    allocated += bytes;
    return inner_->allocate(bytes);
  }
  void release(void* address, size_t bytes) noexcept override { inner_->release(address, bytes); }
  void copy_in(const Tensor& to, const void* host) override { inner_->copy_in(to, host); }
  void copy_out(void* host, const Tensor& from) override { inner_->copy_out(host, from); }
  void begin_range(const char* name) override { ranges += std::string(name) + "("; }
  void end_range() override { ranges += ")"; }

 private:
  std::unique_ptr<Device> inner_ = make_reference_device();
};

}  // namespace hearth::testing
