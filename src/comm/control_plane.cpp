#include "comm/control_plane.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "comm/coordinator.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;
using wire::Kind;

constexpr milliseconds send_patience{5'000};
constexpr milliseconds status_interval{100};  // at most, besides the heartbeats

void wake(const Descriptor& eventfd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(eventfd.get(), &one, sizeof one);
}

}  // namespace

ControlPlane::ControlPlane(ControlOptions options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  members_.resize(static_cast<size_t>(world()));
  if (world() == 1)
    members_[0] = {host_name(), ::getpid(), "127.0.0.1"};
  else
    join();
}

ControlPlane::~ControlPlane() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  wake(wake_);
  if (thread_.joinable()) thread_.join();
  socket_.close();
  coordinator_.reset();
}

void ControlPlane::join() {
  const Hello self{options_.where.token, rank(),          world(),        host_name(),
                   ::getpid(),           options_.device, options_.build, options_.config};
  if (rank() == 0) {
    Descriptor listener =
        options_.where.listener >= 0 ? Descriptor(options_.where.listener) : listen_on(options_.where.port);
    coordinator_ = std::make_unique<Coordinator>(
        std::move(listener),
        Coordinator::Options{self, options_.init_timeout, options_.timeout, options_.log});
  }
  const auto deadline = Clock::now() + options_.init_timeout;
  connect_to_coordinator(deadline);
  last_heard_ = Clock::now();
  thread_ = std::thread([this] { serve(); });
  try {
    // The coordinator, which knows more, gives up first.
    std::unique_lock lock(mutex_);
    while (!welcomed_ && !failure_ && Clock::now() < deadline + milliseconds(2000)) {
      options_.while_waiting();
      changed_.wait_for(lock, milliseconds(100));
    }
    lock.unlock();
    throw_if_failed();
    if (!welcomed_)
      throw Error(ExitCode::peer, text("rank 0 at ", options_.where.host, ":", options_.where.port,
                                       " did not start the run within ",
                                       static_cast<double>(options_.init_timeout.count()) / 1000, " s"));
  } catch (...) {  // no destructor runs for a constructor that throws
    {
      const std::lock_guard leave(mutex_);
      leaving_ = true;
    }
    wake(wake_);
    thread_.join();
    socket_.close();
    throw;
  }
}

// Tries again while nobody listens yet, or another job's coordinator sends us away.
void ControlPlane::connect_to_coordinator(Clock::time_point deadline) {
  const std::string& host = options_.where.host;
  const int port = options_.where.port;
  std::string reason = "nobody answered";
  milliseconds pause(20);
  while (Clock::now() < deadline) {
    options_.while_waiting();
    socket_ = connect_to(host, port, std::min(deadline, Clock::now() + milliseconds(10'000)), reason);
    if (socket_) {
      if (say_hello(deadline)) return;
      reason = "it closed the connection: is another job using the port, or is the token a different one?";
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(1000));
  }
  throw Error(ExitCode::peer,
              text("rank ", rank(), " on ", host_name(), " cannot reach rank 0 at ", host, ":", port,
                   " within ", static_cast<double>(options_.init_timeout.count()) / 1000, " s: ", reason,
                   "; is rank 0 running, and is the port open between the hosts?"));
}

// False when the other side hangs up soon after.
bool ControlPlane::say_hello(Clock::time_point deadline) {
  const Hello self{options_.where.token, rank(),          world(),        host_name(),
                   ::getpid(),           options_.device, options_.build, options_.config};
  if (!write_all(socket_, encode(self), deadline)) return false;
  pollfd waiting{socket_.get(), POLLIN, 0};
  ::poll(&waiting, 1, 200);
  char byte;
  return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

void ControlPlane::serve() {
  const milliseconds pulse = std::min(milliseconds(1000), options_.timeout / 5);
  auto next_heartbeat = Clock::now();
  auto last_turn = Clock::now();
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(next_heartbeat - Clock::now()).count();
    pollfd watched[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(watched, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    // When this process itself was stopped for a while, the other's silence says nothing.
    if (Clock::now() - last_turn > pulse * 2 + options_.timeout / 4) last_heard_ = Clock::now();
    last_turn = Clock::now();
    receive();
    std::unique_lock lock(mutex_);
    if (leaving_ || failure_) return;
    const std::string status = status_;
    const bool silent = welcomed_ && last_turn - last_heard_ > options_.timeout;
    lock.unlock();
    if (silent)
      record({0, ExitCode::peer,
              text(describe_rank(0), " has been silent for ",
                   static_cast<double>(options_.timeout.count()) / 1000,
                   " s: it is stopped, or its host or network is down")});
    if (Clock::now() < next_heartbeat) continue;
    next_heartbeat = Clock::now() + pulse;
    send(wire::Writer().string(status).message(Kind::heartbeat));
  }
}

void ControlPlane::receive() {
  char buffer[16384];
  while (true) {
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      const std::string zero = welcomed_ ? describe_rank(0) : text("rank 0 at ", options_.where.host);
      return record({0, ExitCode::peer, text(zero, " died: its connection closed")});
    }
    last_heard_ = Clock::now();
    inbox_.append({buffer, static_cast<size_t>(n)});
    while (auto message = inbox_.next())
      handle(*message);
  }
}

void ControlPlane::handle(const wire::Message& message) {
  wire::Reader in(message.payload);
  if (message.kind == Kind::failure) {
    const int culprit = static_cast<int>(in.u32());
    const auto code = static_cast<ExitCode>(in.u32());
    return record({culprit, code, in.string()});
  }
  const std::lock_guard lock(mutex_);
  if (message.kind == Kind::welcome) {
    for (Member& member : members_) {
      member.host = in.string();
      member.pid = static_cast<int64_t>(in.u64());
      member.address = in.string();
    }
    welcomed_ = true;
  } else if (message.kind == Kind::value) {
    const std::string key = in.string();
    values_[key] = in.string();
  } else if (message.kind == Kind::release) {
    released_.insert(in.string());
  }
  changed_.notify_all();
}

// The first failure counts; a closed connection at the end is none.
void ControlPlane::record(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || leaving_) return;
    failure_ = failure;
    changed_.notify_all();
  }
  const std::lock_guard lock(listener_mutex_);
  for (const auto& [handle, listener] : listeners_)
    listener();
}

void ControlPlane::send(const std::string& message) {
  const std::lock_guard lock(send_mutex_);
  // A broken connection shows up where it is read.
  if (socket_) write_all(socket_, message, Clock::now() + send_patience);
}

void ControlPlane::wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
                              milliseconds patience, const std::string& what) {
  changed_.wait_for(lock, patience, [&] { return failure_ || done(); });
  if (done() && !failure_) return;
  lock.unlock();
  throw_if_failed();
  const std::string reason =
      text(describe_rank(rank()), " waited ", static_cast<double>(patience.count()) / 1000, " s for ", what);
  fail(ExitCode::peer, reason);
  throw Error(ExitCode::peer, reason);
}

void ControlPlane::put(const std::string& key, const std::string& value) {
  throw_if_failed();
  if (world() == 1) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    return;
  }
  send(wire::Writer().string(key).string(value).message(Kind::put));
}

std::string ControlPlane::get(const std::string& key) {
  throw_if_failed();
  if (world() > 1) send(wire::Writer().string(key).message(Kind::get));
  std::unique_lock lock(mutex_);
  wait_until(
      lock, [&] { return values_.contains(key); }, options_.timeout, text("key '", key, "'"));
  return values_.at(key);
}

std::optional<std::string> ControlPlane::look_up(const std::string& key, milliseconds patience) {
  throw_if_failed();
  if (world() > 1) send(wire::Writer().string(key).message(Kind::get));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return failure_ || values_.contains(key); });
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

void ControlPlane::barrier(const std::string& name, milliseconds patience) {
  throw_if_failed();
  if (world() == 1) return;
  std::unique_lock lock(mutex_);
  const std::string numbered = text(name, " #", ++barriers_);
  lock.unlock();
  send(wire::Writer().string(numbered).u64(static_cast<uint64_t>(patience.count())).message(Kind::barrier));
  lock.lock();
  // The coordinator, which can name the missing ranks, gives up first.
  wait_until(
      lock, [&] { return released_.contains(numbered); }, patience + milliseconds(2000),
      text("barrier '", numbered, "'"));
  released_.erase(numbered);
}

void ControlPlane::throw_if_failed() const {
  if (const auto failed = failure()) throw Error(failed->code, failed->reason);
}

void ControlPlane::set_status(const std::string& status) {
  {
    const std::lock_guard lock(mutex_);
    status_ = status;
    if (world() == 1 || Clock::now() < next_status_) return;  // the next heartbeat carries it
    next_status_ = Clock::now() + status_interval;
  }
  send(wire::Writer().string(status).message(Kind::heartbeat));
}

void ControlPlane::fail(ExitCode code, const std::string& reason) noexcept {
  if (failure()) return;
  send(wire::Writer()
           .u32(static_cast<uint32_t>(rank()))
           .u32(static_cast<uint32_t>(code))
           .string(reason)
           .message(Kind::failure));
  record({rank(), code, reason});
}

std::optional<Failure> ControlPlane::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<Failure> ControlPlane::wait_for_failure(milliseconds patience) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return failure_.has_value(); });
  return failure_;
}

int ControlPlane::on_failure(std::function<void()> listener) {
  const std::lock_guard lock(listener_mutex_);
  const int handle = next_listener_++;
  // A failure that is there already is announced at once; one that comes now finds the listener in its round.
  if (failure())
    listener();
  else
    listeners_[handle] = std::move(listener);
  return handle;
}

void ControlPlane::stop_listening(int handle) noexcept {
  const std::lock_guard lock(listener_mutex_);
  listeners_.erase(handle);
}

void ControlPlane::leave() {
  if (world() == 1) return;
  barrier("exit");
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  send(wire::Writer().message(Kind::goodbye));
}

}  // namespace hearth
