// Communicator: collectives over one group of ranks (one axis of the grid).
//
// The model calls it from the first day, with a group of size one; Gloo and NCCL implement it for more. Calls
// are asynchronous: they return a Request, and the result may be used on the compute stream after wait().
// Every rank of a group makes the same collective calls in the same order.
//
// Sums are taken element by element in rank order 0, 1, ... size - 1, in fp32 for f32 and bf16 (rounded once)
// and in the type itself otherwise: the result has the same bits on all ranks and in every run.  (NCCL keeps
// only the second half of this promise.)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "tensor/tensor.h"

namespace hearth {

enum class Reduce : uint8_t { sum, max };

// A pending operation.  wait() orders the compute stream after it (and blocks the host only on host devices);
// errors of the operation are thrown there.  The memory of the operation must live, untouched, until then.
class [[nodiscard]] Request {
 public:
  Request() = default;
  explicit Request(std::function<void()> wait) : wait_(std::move(wait)) {}
  void wait() {
    const std::function<void()> wait = std::move(wait_);
    wait_ = nullptr;
    if (wait) wait();
  }

 private:
  std::function<void()> wait_;
};

// One half of a point-to-point transfer: this rank's part in it.
struct Transfer {
  enum class Direction : uint8_t { send, receive };
  Direction direction;
  Tensor tensor;
  int peer;  // rank in the group
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place; all ranks give equal shapes and types (f64, f32, bf16, i64, i32).
  virtual Request all_reduce(const Tensor& inout, Reduce op) = 0;
  // in [size * n, ...] -> out [n, ...]: the sum over ranks of the rank-th part.
  // `out` may be that part of in.
  virtual Request reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n, ...] -> out [size * n, ...].  `in` may be the rank-th part of out.
  virtual Request all_gather(const Tensor& in, const Tensor& out) = 0;
  virtual Request broadcast(const Tensor& inout, int root) = 0;
  // Starts all transfers together: a send and a receive that cross each other never wait for one another.
  // Between two ranks, transfers of one direction match in the order of the calls.  (Over NCCL, calls that
  // cross each other do wait: make them one call.)
  virtual Request exchange(std::span<const Transfer> transfers) = 0;
  virtual void barrier() = 0;
  // For a host that has read results: throws when operations on a stream were cut off since they were waited
  // for, so that the results mean nothing.
  virtual void throw_if_failed() {}
  // Ends pending and later operations with an error, from any thread: another rank has failed.
  virtual void abort() noexcept {}

  Request send(const Tensor& from, int peer) {
    return exchange(std::array{Transfer{Transfer::Direction::send, from, peer}});
  }
  Request recv(const Tensor& to, int peer) {
    return exchange(std::array{Transfer{Transfer::Direction::receive, to, peer}});
  }
};

// The group of one rank: nothing to do. Gathering and scattering must be in place.
class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Request all_reduce(const Tensor&, Reduce) override { return {}; }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override;
  Request all_gather(const Tensor& in, const Tensor& out) override;
  Request broadcast(const Tensor&, int) override { return {}; }
  Request exchange(std::span<const Transfer> transfers) override;
  void barrier() override {}
};

}  // namespace hearth
