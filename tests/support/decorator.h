// A communicator and a (reference) device that pass everything on: tests override what they spoil.
#pragma once

#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "device/device.h"

namespace hearth::testing {

class Decorator : public Communicator {
 public:
  explicit Decorator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Request all_reduce(const Tensor& t, Reduce op) override { return inner_->all_reduce(t, op); }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    return inner_->reduce_scatter(in, out);
  }
  Request all_gather(const Tensor& in, const Tensor& out) override { return inner_->all_gather(in, out); }
  Request broadcast(const Tensor& t, int root) override { return inner_->broadcast(t, root); }
  Request exchange(std::span<const Transfer> transfers) override { return inner_->exchange(transfers); }
  void barrier() override { inner_->barrier(); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

class DeviceDecorator : public Device {
 public:
  std::string kind() const override { return inner_->kind(); }
  std::string description() const override { return inner_->description(); }
  Ops& ops() override { return inner_->ops(); }
  bool host_memory() const override { return inner_->host_memory(); }
  std::optional<std::string> unsupported(Precision precision) const override {
    return inner_->unsupported(precision);
  }
  void* allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void release(void* address, size_t bytes) noexcept override { inner_->release(address, bytes); }
  void copy_in(const Tensor& to, const void* host) override { inner_->copy_in(to, host); }
  void copy_out(void* host, const Tensor& from) override { inner_->copy_out(host, from); }

 protected:
  std::unique_ptr<Device> inner_ = make_reference_device();
};

}  // namespace hearth::testing
