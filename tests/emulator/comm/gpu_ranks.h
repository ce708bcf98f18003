// Ranks with emulated GPUs: processes with a control plane, a device each,
// and a communicator over all of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/gloo_communicator.h"
#include "comm/nccl.h"
#include "comm/staged_communicator.h"
#include "emulator/emulator.h"
#include "support/ranks.h"

namespace hearth {

enum class Transport : uint8_t { nccl, staged };

// The device of a rank.  With NCCL each has a GPU of its own; with staging all have the first.
inline std::unique_ptr<Device> device_of(Transport transport, int rank, int world) {
  emulator::options().devices = transport == Transport::nccl ? world : 1;
  DeviceConfig config;
  config.local_rank = rank;
  return make_cuda_device(config);
}

// Communicators over one device.
class GpuFabric {
 public:
  GpuFabric(Transport transport, ControlPlane& control, Device& device)
      : transport_(transport), device_(device) {
    if (transport == Transport::nccl)
      fabric_ = make_nccl_fabric(control, device);
    else
      fabric_ = std::make_unique<GlooFabric>(control);
  }
  std::unique_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks) {
    auto group = fabric_->connect(name, ranks);
    if (transport_ == Transport::nccl || ranks.size() == 1) return group;
    return std::make_unique<StagedCommunicator>(std::move(group), device_);
  }

 private:
  const Transport transport_;
  Device& device_;
  std::unique_ptr<Fabric> fabric_;
};

using GpuBody = std::function<void(ControlPlane&, Device&, Communicator&)>;

inline std::vector<RankResult> run_gpu_group(Transport transport, int world, const GpuBody& body,
                                             double deadline, const std::vector<int>& stuck = {},
                                             const std::function<void(ControlOptions&)>& adjust = nullptr) {
  return run_ranks(
      world,
      [&](ControlPlane& control) {
        const auto device = device_of(transport, control.rank(), world);
        GpuFabric fabric(transport, control, *device);
        std::vector<int> everybody;
        for (int rank = 0; rank < world; ++rank)
          everybody.push_back(rank);
        const auto group = fabric.connect("data", everybody);
        try {
          body(control, *device, *group);
          device->synchronize();
          group->throw_if_failed();
          control.barrier("end of the test");
        } catch (const Error& error) {
          control.fail(error.code(), error.what());  // before the communicators go
          throw;
        } catch (const std::exception& error) {
          control.fail(ExitCode{99}, error.what());
          throw;
        }
      },
      deadline, stuck, adjust);
}

// A tensor on the GPU with values of the host's.
class OnDevice {
 public:
  OnDevice(Device& device, const Tensor& host)
      : device_(device), host_(host), buffer_(device, static_cast<size_t>(host.bytes())) {
    upload();
  }
  Tensor tensor() const { return Tensor(buffer_.data(), host_.dtype, host_.shape); }
  void upload() {
    if (host_.bytes()) device_.copy_in(tensor(), host_.data);
  }
  void download() const {
    if (host_.bytes()) device_.copy_out(host_.data, tensor());
  }

 private:
  Device& device_;
  Tensor host_;
  Buffer buffer_;
};

// Lets the conformance suite, whose tensors are the host's, test a communicator of a device: each call works
// on copies in device memory, and wait() brings them back.
class DeviceSide final : public Communicator {
 public:
  DeviceSide(Communicator& inner, Device& device) : inner_(inner), device_(device) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void barrier() override { inner_.barrier(); }
  void abort() noexcept override { inner_.abort(); }

  Request all_reduce(const Tensor& inout, Reduce op) override {
    const auto x = put(inout);
    return bring_back({x}, inner_.all_reduce(x->tensor(), op));
  }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    const auto whole = put(in);
    const auto part = part_of(*whole, in, out);
    return bring_back({whole, part.second}, inner_.reduce_scatter(whole->tensor(), part.first));
  }
  Request all_gather(const Tensor& in, const Tensor& out) override {
    const auto whole = put(out);
    const auto part = part_of(*whole, out, in);
    return bring_back({whole, part.second}, inner_.all_gather(part.first, whole->tensor()));
  }
  Request broadcast(const Tensor& inout, int root) override {
    const auto x = put(inout);
    return bring_back({x}, inner_.broadcast(x->tensor(), root));
  }
  Request exchange(std::span<const Transfer> transfers) override {
    std::vector<Transfer> on_device;
    std::vector<std::shared_ptr<OnDevice>> all;
    for (const Transfer& t : transfers) {
      all.push_back(put(t.tensor));
      on_device.push_back({t.direction, all.back()->tensor(), t.peer});
    }
    return bring_back(all, inner_.exchange(on_device));
  }

 private:
  using Held = std::shared_ptr<OnDevice>;
  Held put(const Tensor& host) { return std::make_shared<OnDevice>(device_, host); }

  // A part that lies in the whole lies there on the device, too.
  std::pair<Tensor, Held> part_of(const OnDevice& whole, const Tensor& whole_on_host, const Tensor& part) {
    const auto* begin = static_cast<const std::byte*>(whole_on_host.data);
    const auto* at = static_cast<const std::byte*>(part.data);
    if (at >= begin && at < begin + whole_on_host.bytes())
      return {Tensor(static_cast<std::byte*>(whole.tensor().data) + (at - begin), part.dtype, part.shape),
              nullptr};
    const Held own = put(part);
    return {own->tensor(), own};
  }

  Request bring_back(std::vector<Held> held, Request request) {
    auto pending = std::make_shared<Request>(std::move(request));
    return Request([held = std::move(held), pending] {
      pending->wait();
      for (const Held& h : held)
        if (h) h->download();
    });
  }

  Communicator& inner_;
  Device& device_;
};

}  // namespace hearth
