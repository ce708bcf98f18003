#include "comm/gloo_link.h"

#include <algorithm>

#include "base/error.h"
#include "comm/gloo_store.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;

// The control plane notices a silent rank after its timeout, and knows its name: it goes first.
constexpr milliseconds margin{2'000};
// How long a broken connection waits for the control plane to say whose fault it is.
constexpr milliseconds verdict_patience{1'000};

int place_of(int rank, const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  check(found != ranks.end(), "rank ", rank, " is not in the group that it connects");
  return static_cast<int>(found - ranks.begin());
}

// Spreads the bits of x over 64 (the finalizer of SplitMix64, Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t mix(uint64_t seed, const std::string& name) {
  for (char c : name)
    seed = mix(seed ^ static_cast<uint8_t>(c));
  return seed;
}

}  // namespace

GlooLink::GlooLink(ControlPlane& control, std::shared_ptr<gloo::transport::Device>& device, std::string name,
                   std::vector<int> ranks)
    : control_(control),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(place_of(control.rank(), ranks_)),
      context_(std::make_shared<gloo::rendezvous::Context>(rank_, size())) {
  const Operation connecting{"connecting", 0, {}};
  context_->setTimeout(control_.timeout() + margin);
  std::string prefix = text("gloo/", name_);
  for (int member : ranks_)
    prefix += text("/", member);
  GlooStore store(control_, prefix + "/");
  try {
    context_->connectFullMesh(store, device);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& broken) {
    fail(connecting, -1, broken.what());
  }
  listener_ = control_.on_failure([this] { abort(); });
}

GlooLink::~GlooLink() {
  control_.stop_listening(listener_);
}

Operation GlooLink::operation(const std::string& kind, const std::string& type, int64_t elements,
                              uint64_t number) const {
  Operation op;
  op.name = text(kind, " ", number, " of ", elements, " ", type);
  op.tag = mix(mix(mix(static_cast<uint64_t>(elements)) ^ number, kind), type);
  op.deadline = deadline();
  return op;
}

Clock::time_point GlooLink::deadline() const {
  return Clock::now() + control_.timeout() + margin;
}

void GlooLink::close() noexcept {
  closing_ = true;
  abort();
}

void GlooLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (Batch* batch : batches_)
    for (const Batch::Message& message : batch->messages_) {
      message.buffer->abortWaitRecv();
      message.buffer->abortWaitSend();
    }
}

// Throws the run's failure: the one that the control plane knows of, or this one, which it then learns.
void GlooLink::fail(const Operation& operation, int peer, const std::string& why) {
  const std::string here = text(operation.name, " on the ", name_, " axis");
  if (closing_) throw Error(ExitCode::peer, text(here, " was given up"));
  const bool late = Clock::now() >= operation.deadline;
  if (const auto known = control_.wait_for_failure(late ? milliseconds(0) : verdict_patience))
    throw Error(known->code,
                text(known->reason, " [", control_.describe_rank(control_.rank()), " was in ", here, "]"));
  const std::string culprit = peer < 0 ? text("a rank of the ", name_, " axis")
                                       : control_.describe_rank(ranks_[static_cast<size_t>(peer)]);
  const std::string reason =
      late ? text(culprit, " did not take part in ", here, " within ",
                  static_cast<double>((control_.timeout() + margin).count()) / 1000, " s, says ",
                  control_.describe_rank(control_.rank()), ": it is stuck, or in another operation")
           : text(culprit, " is lost to ", control_.describe_rank(control_.rank()), " in ", here, ": ", why);
  control_.fail(ExitCode::peer, reason);
  control_.throw_if_failed();
  throw Error(ExitCode::peer, reason);
}

GlooLink::Batch::Batch(GlooLink& link) : link_(link) {
  const std::lock_guard lock(link_.mutex_);
  link_.batches_.insert(this);
}

GlooLink::Batch::~Batch() {
  const std::lock_guard lock(link_.mutex_);
  link_.batches_.erase(this);
}

// Runs an action of Gloo, which throws, or returns false, when it cannot succeed any more.
template <class Action>
void GlooLink::Batch::guarded(const Operation& operation, int peer, const Action& action) {
  try {
    if (!link_.aborted_ && action()) return;
  } catch (const std::exception& broken) {
    link_.fail(operation, peer, broken.what());
  }
  link_.fail(operation, peer, "aborted");
}

void GlooLink::Batch::start(const Operation& operation, Message message, int64_t bytes, uint64_t part) {
  const uint64_t tag = mix(operation.tag ^ mix(part));
  guarded(operation, message.peer, [&] {
    if (message.sends)
      message.buffer->send(message.peer, tag, 0, static_cast<size_t>(bytes));
    else
      message.buffer->recv(message.peer, tag, 0, static_cast<size_t>(bytes));
    return true;
  });
  const std::lock_guard lock(link_.mutex_);
  messages_.push_back(std::move(message));
}

void GlooLink::Batch::send(const Operation& operation, int peer, const void* from, int64_t bytes,
                           uint64_t part) {
  if (bytes == 0) return;
  auto buffer = link_.context_->createUnboundBuffer(const_cast<void*>(from), static_cast<size_t>(bytes));
  start(operation, {peer, true, std::move(buffer)}, bytes, part);
}

void GlooLink::Batch::receive(const Operation& operation, int peer, void* to, int64_t bytes, uint64_t part) {
  if (bytes == 0) return;
  auto buffer = link_.context_->createUnboundBuffer(to, static_cast<size_t>(bytes));
  start(operation, {peer, false, std::move(buffer)}, bytes, part);
}

// Receives first: what a peer lacks is found out by name.
void GlooLink::Batch::wait(const Operation& operation) {
  for (bool sends : {false, true})
    for (const Message& message : messages_) {
      if (message.sends != sends) continue;
      guarded(operation, message.peer, [&] {
        const auto left =
            std::max(milliseconds(1), std::chrono::ceil<milliseconds>(operation.deadline - Clock::now()));
        return sends ? message.buffer->waitSend(left) : message.buffer->waitRecv(left);
      });
    }
  const std::lock_guard lock(link_.mutex_);
  messages_.clear();
}

}  // namespace hearth
