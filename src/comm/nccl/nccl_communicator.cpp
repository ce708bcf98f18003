#include "comm/nccl/nccl_communicator.h"

#include "base/error.h"

namespace hearth {
namespace {

nccl::DataType type_of(DType type) {
  switch (type) {
    case DType::f64:
      return nccl::DataType::float64;
    case DType::f32:
      return nccl::DataType::float32;
    case DType::bf16:
      return nccl::DataType::bfloat16;
    case DType::i64:
      return nccl::DataType::int64;
    case DType::i32:
      return nccl::DataType::int32;
    case DType::u8:
      return nccl::DataType::uint8;
  }
  return nccl::DataType::uint8;
}

size_t count_of(const Tensor& tensor) {
  return static_cast<size_t>(tensor.elements());
}

void require_contiguous(const Tensor& tensor) {
  check(tensor.contiguous(), "a collective on a tensor with gaps, ", tensor.shape);
}

constexpr nccl::Op op_of(Reduce op) {
  return op == Reduce::sum ? nccl::Op::sum : nccl::Op::max;
}

}  // namespace

NcclCommunicator::NcclCommunicator(NcclSession& session, cuda::CudaDevice& device, nccl::Comm comm,
                                   NcclGroup group, int rank)
    : session_(session),
      comm_(comm),
      group_(std::make_shared<NcclGroup>(std::move(group))),
      rank_(rank),
      token_(device, sizeof(int32_t)) {}

NcclCommunicator::~NcclCommunicator() {
  session_.release(comm_);
}

Request NcclCommunicator::start(const std::string& kind, const Tensor& tensor,
                                const NcclSession::Call& call) {
  ++collectives_;
  if (tensor.elements() == 0) return {};  // on all ranks
  NcclMeeting all{text(kind, " ", collectives_, " of ", tensor.elements(), " ", name_of(tensor.dtype)), {}};
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) all.peers.push_back(group_->ranks[static_cast<size_t>(peer)]);
  return session_.launch({std::move(all)}, group_, comm_, call);
}

Request NcclCommunicator::all_reduce(const Tensor& inout, Reduce op) {
  require_contiguous(inout);
  return start(op == Reduce::sum ? "all_reduce(sum)" : "all_reduce(max)", inout,
               [&](const nccl::Api& api, cudaStream_t stream) {
                 return api.all_reduce(inout.data, inout.data, count_of(inout), type_of(inout.dtype),
                                       op_of(op), comm_, stream);
               });
}

Request NcclCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_contiguous(in);
  require_contiguous(out);
  check(in.dtype == out.dtype && in.elements() == size() * out.elements(), "reduce_scatter of ", in.shape,
        " to ", out.shape, " in a group of ", size());
  return start("reduce_scatter", in, [&](const nccl::Api& api, cudaStream_t stream) {
    return api.reduce_scatter(in.data, out.data, count_of(out), type_of(out.dtype), nccl::Op::sum, comm_,
                              stream);
  });
}

Request NcclCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  require_contiguous(in);
  require_contiguous(out);
  check(in.dtype == out.dtype && out.elements() == size() * in.elements(), "all_gather of ", in.shape, " to ",
        out.shape, " in a group of ", size());
  return start("all_gather", in, [&](const nccl::Api& api, cudaStream_t stream) {
    return api.all_gather(in.data, out.data, count_of(in), type_of(in.dtype), comm_, stream);
  });
}

Request NcclCommunicator::broadcast(const Tensor& inout, int root) {
  require_contiguous(inout);
  check(root >= 0 && root < size(), "broadcast from rank ", root, " of ", size());
  return start(text("broadcast from ", root), inout, [&](const nccl::Api& api, cudaStream_t stream) {
    return api.broadcast(inout.data, inout.data, count_of(inout), type_of(inout.dtype), root, comm_, stream);
  });
}

Request NcclCommunicator::exchange(std::span<const Transfer> transfers) {
  std::vector<NcclMeeting> meetings;
  for (const Transfer& transfer : transfers) {
    const Tensor& tensor = transfer.tensor;
    require_contiguous(tensor);
    check(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(), "a transfer between rank ",
          rank(), " and rank ", transfer.peer, " of ", size());
    const bool sends = transfer.direction == Transfer::Direction::send;
    const int from = sends ? rank() : transfer.peer, to = sends ? transfer.peer : rank();
    const uint64_t number = ++transfers_[{from, to}];
    if (tensor.elements() == 0) continue;
    meetings.push_back({text("transfer from ", from, " to ", to, " ", number, " of ", tensor.elements(), " ",
                             name_of(tensor.dtype)),
                        {group_->ranks[static_cast<size_t>(transfer.peer)]}});
  }
  if (meetings.empty()) return {};
  return session_.launch(std::move(meetings), group_, comm_, [&](const nccl::Api& api, cudaStream_t stream) {
    nccl::Result first = api.group_start();
    for (const Transfer& transfer : transfers) {
      const Tensor& tensor = transfer.tensor;
      if (tensor.elements() == 0) continue;
      const nccl::Result result =
          transfer.direction == Transfer::Direction::send
              ? api.send(tensor.data, count_of(tensor), type_of(tensor.dtype), transfer.peer, comm_, stream)
              : api.receive(tensor.data, count_of(tensor), type_of(tensor.dtype), transfer.peer, comm_,
                            stream);
      if (first == nccl::Result::success && result != nccl::Result::in_progress) first = result;
    }
    const nccl::Result last = api.group_end();
    return first == nccl::Result::success ? last : first;
  });
}

// The sum over all ranks cannot be there before all have come.
void NcclCommunicator::barrier() {
  const Tensor token(token_.data(), DType::i32, {1});
  start("barrier", token, [&](const nccl::Api& api, cudaStream_t stream) {
    return api.all_reduce(token.data, token.data, 1, nccl::DataType::int32, nccl::Op::max, comm_, stream);
  }).wait();
  session_.drain(text("barrier on the ", group_->name, " axis"));
}

}  // namespace hearth
