// One group's collectives over NCCL.  See comm/nccl.h for what differs from other communicators.
#pragma once

#include <map>
#include <utility>

#include "comm/nccl/nccl_session.h"

namespace hearth {

class NcclCommunicator final : public Communicator {
 public:
  // `comm` has the group's ranks in their order.
  NcclCommunicator(NcclSession& session, cuda::CudaDevice& device, nccl::Comm comm, NcclGroup group,
                   int rank);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }
  Request all_reduce(const Tensor& inout, Reduce op) override;
  Request reduce_scatter(const Tensor& in, const Tensor& out) override;
  Request all_gather(const Tensor& in, const Tensor& out) override;
  Request broadcast(const Tensor& inout, int root) override;
  Request exchange(std::span<const Transfer> transfers) override;
  void barrier() override;
  void throw_if_failed() override { session_.throw_if_failed("the work of the GPU"); }
  void abort() noexcept override { session_.abort(); }

 private:
  Request start(const std::string& kind, const Tensor& tensor, const NcclSession::Call& call);

  NcclSession& session_;
  const nccl::Comm comm_;
  const NcclSession::Group group_;
  const int rank_;
  Buffer token_;  // what a barrier sums
  uint64_t collectives_ = 0;
  std::map<std::pair<int, int>, uint64_t> transfers_;  // by sender and receiver
};

}  // namespace hearth
