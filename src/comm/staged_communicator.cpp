#include "comm/staged_communicator.h"

#include <bit>

#include "base/error.h"

namespace hearth {

HostStaging::~HostStaging() {
  for (const Block& block : blocks_)
    device_.release_host(block.memory);
}

std::shared_ptr<std::byte> HostStaging::take(int64_t bytes) {
  const size_t wanted = std::bit_ceil(std::max<size_t>(static_cast<size_t>(bytes), 4096));
  const std::lock_guard lock(mutex_);
  Block* free = nullptr;
  for (Block& block : blocks_)
    if (!block.taken && block.bytes == wanted) free = &block;
  if (!free) free = &blocks_.emplace_back(Block{device_.allocate_host(wanted), wanted, false});
  free->taken = true;
  return {static_cast<std::byte*>(free->memory), [this](std::byte* memory) { give_back(memory); }};
}

void HostStaging::give_back(void* memory) {
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_)
    if (block.memory == memory) block.taken = false;
}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, Device& device)
    : device_(device), staging_(device), host_(std::move(host)), worker_(std::make_unique<Worker>()) {
  worker_->give([this] { device_.enter_thread(); });
}

// The host's operations end before the memory that they use goes.
StagedCommunicator::~StagedCommunicator() {
  worker_.reset();
  host_.reset();
}

StagedCommunicator::Staged StagedCommunicator::stage(const Tensor& tensor) {
  check(tensor.contiguous(), "a collective on a tensor with gaps, ", tensor.shape);
  Staged staged;
  staged.device = tensor;
  staged.memory = staging_.take(tensor.bytes());
  staged.host = Tensor(staged.memory.get(), tensor.dtype, tensor.shape);
  return staged;
}

// This rank's part of a staged tensor, which `tensor` is on the device.
StagedCommunicator::Staged StagedCommunicator::part_of(const Staged& whole, const Tensor& tensor) const {
  check(tensor.contiguous(), "a collective on a tensor with gaps, ", tensor.shape);
  check(tensor.bytes() * size() == whole.device.bytes(), "part ", tensor.shape, " of ", whole.device.shape,
        " in a group of ", size());
  return {tensor, Tensor(whole.memory.get() + rank() * tensor.bytes(), tensor.dtype, tensor.shape),
          whole.memory};
}

Request StagedCommunicator::start(const std::vector<Staged>& leaving, std::vector<Staged> arriving,
                                  std::function<Request()> operation) {
  // The compute stream's work so far comes first: it makes the values, and it still copies back from staging
  // memory that may be in use again now.
  device_.wait(Stream::communication, device_.record(Stream::compute));
  for (const Staged& staged : leaving)
    device_.copy(Stream::communication, staged.host.data, staged.device.data,
                 static_cast<size_t>(staged.device.bytes()));
  // The operations of the host start in the order of the calls, as all ranks' must.
  auto pending = std::make_shared<Request>();
  const auto started = worker_->give(
      [this, pending, operation = std::move(operation), copied = device_.record(Stream::communication)] {
        device_.synchronize(copied);
        *pending = operation();
      });
  return Request([this, started, pending, leaving, arriving = std::move(arriving)] {
    started.get();
    pending->wait();
    for (const Staged& staged : arriving)
      device_.copy(Stream::compute, staged.device.data, staged.host.data,
                   static_cast<size_t>(staged.device.bytes()));
  });
}

Request StagedCommunicator::all_reduce(const Tensor& inout, Reduce op) {
  const Staged staged = stage(inout);
  return start({staged}, {staged}, [this, staged, op] { return host_->all_reduce(staged.host, op); });
}

Request StagedCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  const Staged whole = stage(in);
  const Staged part = part_of(whole, out);
  return start({whole}, {part}, [this, whole, part] { return host_->reduce_scatter(whole.host, part.host); });
}

Request StagedCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  const Staged whole = stage(out);
  const Staged part = part_of(whole, in);
  return start({part}, {whole}, [this, whole, part] { return host_->all_gather(part.host, whole.host); });
}

Request StagedCommunicator::broadcast(const Tensor& inout, int root) {
  const Staged staged = stage(inout);
  std::vector<Staged> leaving, arriving;
  (rank() == root ? leaving : arriving).push_back(staged);
  return start(leaving, arriving, [this, staged, root] { return host_->broadcast(staged.host, root); });
}

Request StagedCommunicator::exchange(std::span<const Transfer> transfers) {
  std::vector<Transfer> on_host;
  std::vector<Staged> leaving, arriving;
  for (const Transfer& transfer : transfers) {
    const Staged staged = stage(transfer.tensor);
    on_host.push_back({transfer.direction, staged.host, transfer.peer});
    (transfer.direction == Transfer::Direction::send ? leaving : arriving).push_back(staged);
  }
  return start(leaving, arriving, [this, on_host] { return host_->exchange(on_host); });
}

}  // namespace hearth
