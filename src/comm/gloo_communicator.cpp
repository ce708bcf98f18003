#include "comm/gloo_communicator.h"

#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>

#include "comm/combine.h"
#include "comm/gloo_link.h"
#include "comm/worker.h"

namespace hearth {
namespace {

// Bytes of one message of a reduction: two per rank are in flight, so that adding up overlaps with the wire.
constexpr int64_t segment_bytes = 1 << 20;
// Smaller tensors are sent whole to everybody: one exchange instead of two.
constexpr int64_t small_bytes = 16 << 10;

// Part p of a tensor that is divided among the ranks, in elements.
struct Part {
  int64_t begin;
  int64_t count;
};

Part part_of(int64_t elements, int size, int p) {
  const int64_t begin = elements * p / size;
  return {begin, elements * (p + 1) / size - begin};
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(ControlPlane& control, std::shared_ptr<gloo::transport::Device>& device,
                   const std::string& name, const std::vector<int>& ranks)
      : link_(control, device, name, ranks) {}

  // Unfinished operations are given up.
  ~GlooCommunicator() override { link_.close(); }

  int rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  void abort() noexcept override { link_.abort(); }

  Request all_reduce(const Tensor& inout, Reduce op) override {
    require_contiguous(inout);
    return start(op == Reduce::sum ? "all_reduce(sum)" : "all_reduce(max)", inout,
                 [this, inout, op](const Operation& operation) { all_reduce_now(operation, inout, op); });
  }

  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    require_contiguous(in);
    require_contiguous(out);
    check(in.dtype == out.dtype && in.elements() == size() * out.elements(), "reduce_scatter of ", in.shape,
          " to ", out.shape, " in a group of ", size());
    return start("reduce_scatter", in, [this, in, out](const Operation& operation) {
      reduce_own_part(operation, in, Reduce::sum, static_cast<std::byte*>(out.data));
    });
  }

  Request all_gather(const Tensor& in, const Tensor& out) override {
    require_contiguous(in);
    require_contiguous(out);
    check(in.dtype == out.dtype && out.elements() == size() * in.elements(), "all_gather of ", in.shape,
          " to ", out.shape, " in a group of ", size());
    return start("all_gather", in, [this, in, out](const Operation& operation) {
      const int64_t bytes = in.bytes();
      std::byte* own = static_cast<std::byte*>(out.data) + rank() * bytes;
      if (own != in.data && bytes) std::memcpy(own, in.data, static_cast<size_t>(bytes));
      gather_parts(operation, out);
    });
  }

  Request broadcast(const Tensor& inout, int root) override {
    require_contiguous(inout);
    check(root >= 0 && root < size(), "broadcast from rank ", root, " of ", size());
    return start(text("broadcast from ", root), inout,
                 [this, inout, root](const Operation& operation) { broadcast_now(operation, inout, root); });
  }

  // Needs no thread: Gloo's own moves the data as soon as both sides have called.
  Request exchange(std::span<const Transfer> transfers) override {
    auto pending = std::make_shared<std::vector<std::pair<Operation, std::unique_ptr<GlooLink::Batch>>>>();
    for (const Transfer& transfer : transfers) {
      const Tensor& tensor = transfer.tensor;
      require_contiguous(tensor);
      check(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(),
            "a transfer between rank ", rank(), " and rank ", transfer.peer, " of ", size());
      const bool sends = transfer.direction == Transfer::Direction::send;
      const int from = sends ? rank() : transfer.peer;
      const int to = sends ? transfer.peer : rank();
      const Operation operation =
          link_.operation(text("transfer from ", from, " to ", to), std::string(name_of(tensor.dtype)),
                          tensor.elements(), ++transfers_[{from, to}]);
      auto message = std::make_unique<GlooLink::Batch>(link_);
      if (sends)
        message->send(operation, to, tensor.data, tensor.bytes());
      else
        message->receive(operation, from, tensor.data, tensor.bytes());
      pending->emplace_back(operation, std::move(message));
    }
    return Request([this, pending] {
      const auto deadline = link_.deadline();
      for (auto& [operation, message] : *pending) {
        operation.deadline = deadline;
        message->wait(operation);
      }
    });
  }

  // After round k, everybody has heard of 2^k ranks (Hensgen et al. 1988, dissemination).
  void barrier() override {
    std::byte byte{};
    start("barrier", Tensor(&byte, DType::u8, {1}), [this](const Operation& operation) {
      std::byte out{}, in{};
      for (int distance = 1; distance < size(); distance *= 2) {
        GlooLink::Batch round(link_);
        round.receive(operation, (rank() - distance + size()) % size(), &in, 1, distance);
        round.send(operation, (rank() + distance) % size(), &out, 1, distance);
        round.wait(operation);
      }
    }).wait();
  }

 private:
  static void require_contiguous(const Tensor& tensor) {
    check(tensor.contiguous(), "a collective on a tensor with gaps, ", tensor.shape);
  }

  // Runs `body` after the collectives before it.
  Request start(const std::string& kind, const Tensor& tensor, std::function<void(const Operation&)> body) {
    const auto done =
        worker_.give([this, kind, type = std::string(name_of(tensor.dtype)), elements = tensor.elements(),
                      number = ++collectives_,
                      body = std::move(body)] { body(link_.operation(kind, type, elements, number)); });
    return Request([done] { done.get(); });
  }

  // Before: partial tensors; after: the sum (or maximum) everywhere.
  void all_reduce_now(const Operation& operation, const Tensor& inout, Reduce op) {
    if (inout.bytes() <= small_bytes) return all_reduce_small(operation, inout, op);
    const Part own = part_of(inout.elements(), size(), rank());
    std::byte* data = static_cast<std::byte*>(inout.data);
    reduce_own_part(operation, inout, op, data + own.begin * size_of(inout.dtype));
    gather_parts(operation, inout);
  }

  // Everybody gets everything and adds up for itself.
  void all_reduce_small(const Operation& operation, const Tensor& inout, Reduce op) {
    const int64_t bytes = inout.bytes();
    staging_.resize(static_cast<size_t>(bytes * size()));
    GlooLink::Batch batch(link_);
    std::vector<const void*> parts;
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* arriving = staging_.data() + peer * bytes;
      parts.push_back(peer == rank() ? inout.data : arriving);
      if (peer == rank()) continue;
      batch.receive(operation, peer, arriving, bytes);
      batch.send(operation, peer, inout.data, bytes);
    }
    batch.wait(operation);
    if (bytes) combine(inout.dtype, op, parts, inout.data, inout.elements());
  }

  // Every rank's part p of `in`, combined in rank order, goes to `out` of rank p.  `out` may be this rank's
  // part of `in`.  Works through segments: while one is being combined, the next one is on its way.
  void reduce_own_part(const Operation& operation, const Tensor& in, Reduce op, std::byte* out) {
    const int64_t width = size_of(in.dtype), segment = segment_bytes / width;
    const Part own = part_of(in.elements(), size(), rank());
    const auto segments = [&](const Part& part) { return (part.count + segment - 1) / segment; };
    const auto count_of = [&](const Part& part, int64_t k) {
      return std::min(segment, part.count - k * segment);
    };
    const int64_t slot = std::min(own.count, segment) * width;  // bytes of staging, two for each rank
    staging_.resize(static_cast<size_t>(2 * slot * size()));
    std::byte* const data = static_cast<std::byte*>(in.data);
    const auto place = [&](int64_t k, int peer) {  // where segment k from `peer` lies
      return peer == rank() ? data + (own.begin + k * segment) * width
                            : staging_.data() + (k % 2 * size() + peer) * slot;
    };

    GlooLink::Batch leaving(link_);
    std::array<GlooLink::Batch, 2> arriving{GlooLink::Batch(link_), GlooLink::Batch(link_)};
    const auto receive_segment = [&](int64_t k) {
      for (int peer = 0; peer < size() && k < segments(own); ++peer)
        if (peer != rank())
          arriving[k % 2].receive(operation, peer, place(k, peer), count_of(own, k) * width, k);
    };
    receive_segment(0);
    for (int step = 1; step < size(); ++step) {  // starting with the next rank, so that not all address one
      const int peer = (rank() + step) % size();
      const Part theirs = part_of(in.elements(), size(), peer);
      for (int64_t k = 0; k < segments(theirs); ++k)
        leaving.send(operation, peer, data + (theirs.begin + k * segment) * width,
                     count_of(theirs, k) * width, k);
    }
    std::vector<const void*> parts(static_cast<size_t>(size()));
    for (int64_t k = 0; k < segments(own); ++k) {
      receive_segment(k + 1);
      arriving[k % 2].wait(operation);
      for (int peer = 0; peer < size(); ++peer)
        parts[static_cast<size_t>(peer)] = place(k, peer);
      combine(in.dtype, op, parts, out + k * segment * width, count_of(own, k));
    }
    leaving.wait(operation);
  }

  // Before: rank p has part p; after: everybody has all parts.
  void gather_parts(const Operation& operation, const Tensor& inout) {
    constexpr uint64_t phase = 1ull << 63;  // tells the messages from those of the reduction before
    const int64_t width = size_of(inout.dtype);
    std::byte* const data = static_cast<std::byte*>(inout.data);
    const Part own = part_of(inout.elements(), size(), rank());
    GlooLink::Batch batch(link_);
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
      const Part theirs = part_of(inout.elements(), size(), from);
      batch.receive(operation, from, data + theirs.begin * width, theirs.count * width, phase);
      batch.send(operation, to, data + own.begin * width, own.count * width, phase);
    }
    batch.wait(operation);
  }

  // A binomial tree: in round k, the ranks below 2^k (counted from the root) each serve one above.
  void broadcast_now(const Operation& operation, const Tensor& inout, int root) {
    const int place = (rank() - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    GlooLink::Batch batch(link_);
    int bit = 1;
    while (bit <= place)
      bit *= 2;
    if (place > 0) {
      batch.receive(operation, rank_at(place - bit / 2), inout.data, inout.bytes());
      batch.wait(operation);
    }
    for (; place + bit < size(); bit *= 2)
      batch.send(operation, rank_at(place + bit), inout.data, inout.bytes());
    batch.wait(operation);
  }

  GlooLink link_;
  uint64_t collectives_ = 0;
  std::map<std::pair<int, int>, uint64_t> transfers_;
  std::vector<std::byte> staging_;  // used by the worker only
  Worker worker_;                   // last: its thread ends before what it uses
};

}  // namespace

struct GlooFabric::Transport {
  std::shared_ptr<gloo::transport::Device> device;
};

GlooFabric::GlooFabric(ControlPlane& control) : control_(control), transport_(std::make_unique<Transport>()) {
  // Gloo writes to sockets that a dead peer has closed; that must be an error, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  gloo::transport::tcp::attr where;
  where.hostname = control.member(control.rank()).address;
  try {
    transport_->device = gloo::transport::tcp::CreateDevice(where);
  } catch (const std::exception& broken) {
    const std::string reason = text(control.describe_rank(control.rank()), " cannot use the address ",
                                    where.hostname, " for collectives: ", broken.what());
    control.fail(ExitCode::peer, reason);
    throw Error(ExitCode::peer, reason);
  }
}

GlooFabric::~GlooFabric() = default;

std::unique_ptr<Communicator> GlooFabric::connect(const std::string& name, const std::vector<int>& ranks) {
  if (ranks.size() == 1) return std::make_unique<SelfCommunicator>();
  return std::make_unique<GlooCommunicator>(control_, transport_->device, name, ranks);
}

}  // namespace hearth
