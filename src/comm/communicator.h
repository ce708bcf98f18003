// Communicator: collectives over one group of ranks (one axis of the grid).
//
// The model calls it from the first day, with a group of size one; Gloo and NCCL implement it for more. Calls
// are asynchronous: they return a Request, and the result may be used on the compute stream after wait().
#pragma once

#include <cstdint>
#include <functional>

#include "tensor/tensor.h"

namespace hearth {

enum class Reduce : uint8_t { sum, max };

// A pending operation.  wait() orders the compute stream after it (and blocks the host only on host devices);
// errors of the operation are thrown there.
class Request {
 public:
  Request() = default;
  explicit Request(std::function<void()> wait) : wait_(std::move(wait)) {}
  void wait() {
    if (wait_) wait_();
    wait_ = nullptr;
  }

 private:
  std::function<void()> wait_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place; all ranks give equal shapes and types.  The result has the same bits on all ranks.
  virtual Request all_reduce(const Tensor& inout, Reduce op) = 0;
  // in [size * n, ...] -> out [n, ...]: the sum over ranks of the rank-th part.
  virtual Request reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n, ...] -> out [size * n, ...].
  virtual Request all_gather(const Tensor& in, const Tensor& out) = 0;
  virtual Request broadcast(const Tensor& inout, int root) = 0;
  virtual Request send(const Tensor& from, int peer) = 0;
  virtual Request recv(const Tensor& to, int peer) = 0;
  virtual void barrier() = 0;
};

// The group of one rank: nothing to do.
class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Request all_reduce(const Tensor&, Reduce) override { return {}; }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override;
  Request all_gather(const Tensor& in, const Tensor& out) override;
  Request broadcast(const Tensor&, int) override { return {}; }
  Request send(const Tensor&, int) override;
  Request recv(const Tensor&, int) override;
  void barrier() override {}
};

}  // namespace hearth
