#include "comm/gloo_communicator.h"

#include <gloo/transport/tcp/device.h>

#include <algorithm>
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
    auto pending = std::make_shared<std::vector<std::pair<Operation, std::unique_ptr<GlooLink::Window>>>>();
    for (const Transfer& transfer : transfers) {
      require_contiguous(transfer.tensor);
      check(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(),
            "a transfer between rank ", rank(), " and rank ", transfer.peer, " of ", size());
      const bool sends = transfer.direction == Transfer::Direction::send;
      const int from = sends ? rank() : transfer.peer;
      const int to = sends ? transfer.peer : rank();
      const Tensor& tensor = transfer.tensor;
      const Operation operation =
          link_.operation(text("transfer from ", from, " to ", to), std::string(name_of(tensor.dtype)),
                          tensor.elements(), ++transfers_[{from, to}]);
      auto window = std::make_unique<GlooLink::Window>(link_, tensor.data, tensor.bytes());
      if (sends)
        window->send(operation, to, 0, tensor.bytes());
      else
        window->receive(operation, from, 0, tensor.bytes());
      pending->emplace_back(operation, std::move(window));
    }
    return Request([this, pending] {
      const auto deadline = link_.deadline();
      for (auto& [operation, window] : *pending) {
        operation.deadline = deadline;
        window->wait(operation);
      }
    });
  }

  // After round k, everybody has heard of 2^k ranks (Hensgen et al. 1988, dissemination).
  void barrier() override {
    std::byte byte{};
    start("barrier", Tensor(&byte, DType::u8, {1}), [this](const Operation& operation) {
      std::byte out{}, in{};
      for (int distance = 1; distance < size(); distance *= 2) {
        GlooLink::Window sending(link_, &out, 1), receiving(link_, &in, 1);
        receiving.receive(operation, (rank() - distance + size()) % size(), 0, 1, distance);
        sending.send(operation, (rank() + distance) % size(), 0, 1, distance);
        receiving.wait(operation);
        sending.wait(operation);
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
    GlooLink::Window arriving(link_, staging_.data(), bytes * size()), leaving(link_, inout.data, bytes);
    std::vector<const void*> parts;
    for (int peer = 0; peer < size(); ++peer) {
      parts.push_back(peer == rank() ? inout.data : staging_.data() + peer * bytes);
      if (peer == rank()) continue;
      arriving.receive(operation, peer, peer * bytes, bytes);
      leaving.send(operation, peer, 0, bytes);
    }
    arriving.wait(operation);
    leaving.wait(operation);
    if (bytes) combine(inout.dtype, op, parts, inout.data, inout.elements());
  }

  // Every rank's part p of `in`, combined in rank order, goes to `out` of rank p.  `out` may be this rank's
  // part of `in`.  Works through segments: while one is being combined, the next one is on its way.
  void reduce_own_part(const Operation& operation, const Tensor& in, Reduce op, std::byte* out) {
    const int64_t width = size_of(in.dtype), segment = segment_bytes / width;
    const Part own = part_of(in.elements(), size(), rank());
    const int64_t own_segments = (own.count + segment - 1) / segment;
    const int64_t half = std::min(own.count, segment) * width;  // bytes of one rank's segment in staging
    staging_.resize(static_cast<size_t>(2 * half * size()));
    GlooLink::Window leaving(link_, in.data, in.bytes());
    std::array<std::unique_ptr<GlooLink::Window>, 2> arriving;
    for (int turn = 0; turn < 2; ++turn)
      arriving[turn] =
          std::make_unique<GlooLink::Window>(link_, staging_.data() + turn * half * size(), half * size());

    const auto receive_segment = [&](int64_t k) {
      const int64_t count = std::min(segment, own.count - k * segment);
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank()) arriving[k % 2]->receive(operation, peer, peer * half, count * width, k);
    };
    if (own_segments > 0) receive_segment(0);
    for (int step = 1; step < size(); ++step) {  // starting with the next rank, so that not all address one
      const int peer = (rank() + step) % size();
      const Part theirs = part_of(in.elements(), size(), peer);
      for (int64_t k = 0; k * segment < theirs.count; ++k)
        leaving.send(operation, peer, (theirs.begin + k * segment) * width,
                     std::min(segment, theirs.count - k * segment) * width, k);
    }
    for (int64_t k = 0; k < own_segments; ++k) {
      if (k + 1 < own_segments) receive_segment(k + 1);
      arriving[k % 2]->wait(operation);
      std::vector<const void*> parts;
      for (int peer = 0; peer < size(); ++peer)
        parts.push_back(peer == rank() ? static_cast<std::byte*>(in.data) + (own.begin + k * segment) * width
                                       : staging_.data() + (k % 2 * size() + peer) * half);
      combine(in.dtype, op, parts, out + k * segment * width, std::min(segment, own.count - k * segment));
    }
    leaving.wait(operation);
  }

  // Before: rank p has part p; after: everybody has all parts.
  void gather_parts(const Operation& operation, const Tensor& inout) {
    constexpr uint64_t phase = 1ull << 63;  // tells the messages from those of the reduction before
    const int64_t width = size_of(inout.dtype);
    const Part own = part_of(inout.elements(), size(), rank());
    GlooLink::Window leaving(link_, inout.data, inout.bytes()), arriving(link_, inout.data, inout.bytes());
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size();
      const Part theirs = part_of(inout.elements(), size(), from);
      arriving.receive(operation, from, theirs.begin * width, theirs.count * width, phase);
      leaving.send(operation, (rank() + step) % size(), own.begin * width, own.count * width, phase);
    }
    arriving.wait(operation);
    leaving.wait(operation);
  }

  // A binomial tree: in round k, the ranks below 2^k (counted from the root) each serve one above.
  void broadcast_now(const Operation& operation, const Tensor& inout, int root) {
    const int place = (rank() - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    GlooLink::Window window(link_, inout.data, inout.bytes());
    int bit = 1;
    while (bit <= place)
      bit *= 2;
    if (place > 0) {
      window.receive(operation, rank_at(place - bit / 2), 0, inout.bytes());
      window.wait(operation);
    }
    for (; place + bit < size(); bit *= 2)
      window.send(operation, rank_at(place + bit), 0, inout.bytes());
    window.wait(operation);
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
