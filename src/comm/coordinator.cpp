#include "comm/coordinator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace hearth {
namespace {

using std::chrono::milliseconds;
using wire::Kind;

constexpr milliseconds longest_silence_before_hello{10'000};
constexpr milliseconds longest_drain{1'000};

std::string failure_message(const Failure& failure) {
  return wire::Writer()
      .u32(static_cast<uint32_t>(failure.rank))
      .u32(static_cast<uint32_t>(failure.code))
      .string(failure.reason)
      .message(Kind::failure);
}

double seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

}  // namespace

std::string encode(const Hello& hello) {
  return wire::Writer()
      .u32(wire::magic)
      .u32(wire::version)
      .string(hello.token)
      .u32(static_cast<uint32_t>(hello.rank))
      .u32(static_cast<uint32_t>(hello.world))
      .string(hello.host)
      .u64(static_cast<uint64_t>(hello.pid))
      .string(hello.device)
      .string(hello.build)
      .string(hello.config)
      .message(Kind::hello);
}

std::optional<Hello> decode_hello(const std::string& payload) {
  wire::Reader in(payload);
  if (in.u32() != wire::magic || in.u32() != wire::version) return std::nullopt;
  Hello hello;
  hello.token = in.string();
  hello.rank = static_cast<int>(in.u32());
  hello.world = static_cast<int>(in.u32());
  hello.host = in.string();
  hello.pid = static_cast<int64_t>(in.u64());
  hello.device = in.string();
  hello.build = in.string();
  hello.config = in.string();
  return in.ok() ? std::optional(hello) : std::nullopt;
}

Coordinator::Coordinator(Descriptor listener, Options options)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

Coordinator::~Coordinator() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void Coordinator::run() {
  const milliseconds pulse = std::min(milliseconds(1000), options_.timeout / 5);
  Clock::time_point last_turn = Clock::now();
  while (!drained()) {
    wait_for_events(std::min(next_heartbeat_, drain_until_.value_or(next_heartbeat_)));
    // When this process itself was stopped for a while, the others' silence says nothing.
    if (Clock::now() - last_turn > pulse * 2 + options_.timeout / 4)
      for (auto& connection : connections_)
        connection->last_heard = Clock::now();
    last_turn = Clock::now();
    serve_sockets();
    check_deadlines();
    if (Clock::now() >= next_heartbeat_) {
      send_heartbeats();
      next_heartbeat_ = Clock::now() + pulse;
    }
    report_progress();
  }
}

// The destructor is waiting, and there is nobody left to tell.
bool Coordinator::drained() const {
  if (!drain_until_) return false;
  const bool all_told = phase_ != Phase::failed || std::cmp_equal(told_.size(), options_.self.world);
  return Clock::now() >= *drain_until_ || (connections_.empty() && all_told);
}

void Coordinator::wait_for_events(Clock::time_point until) {
  std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (const auto& connection : connections_) {
    const short events = connection->outbox.empty() ? POLLIN : POLLIN | POLLOUT;
    watched.push_back({connection->socket.get(), events, 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  ::poll(watched.data(), watched.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
  uint64_t ignored;
  if (::read(wake_.get(), &ignored, sizeof ignored) == sizeof ignored)
    drain_until_ = Clock::now() + longest_drain;
}

void Coordinator::serve_sockets() {
  while (Descriptor socket = accept_from(listener_)) {
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->socket = std::move(socket);
  }
  // By index: handling one connection never adds or removes another.
  for (size_t i = 0; i < connections_.size(); ++i) {
    read_from(*connections_[i]);
    flush(*connections_[i]);
  }
  std::erase_if(connections_, [](const auto& connection) { return connection->finished; });
}

void Coordinator::read_from(Connection& connection) {
  char buffer[16384];
  while (!connection.finished) {
    const ssize_t n = ::recv(connection.socket.get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return lost(connection, "died: its connection closed");
    connection.inbox.append({buffer, static_cast<size_t>(n)});
    connection.last_heard = Clock::now();
    while (auto message = connection.inbox.next())
      if (!connection.finished) handle(connection, *message);
    if (connection.inbox.bad()) return lost(connection, "sent what is not a message of this program");
  }
}

void Coordinator::flush(Connection& connection) {
  while (!connection.outbox.empty() && !connection.finished) {
    const ssize_t n =
        ::send(connection.socket.get(), connection.outbox.data(), connection.outbox.size(), MSG_NOSIGNAL);
    if (n < 0) return;  // full, or broken: reading will tell
    connection.outbox.erase(0, static_cast<size_t>(n));
  }
}

void Coordinator::send(Connection& connection, const std::string& message) {
  connection.outbox += message;
  flush(connection);
}

void Coordinator::handle(Connection& connection, const wire::Message& message) {
  if (message.kind == Kind::hello) return handle_hello(connection, message.payload);
  if (connection.rank < 0) {  // a stranger
    connection.finished = true;
    return;
  }
  wire::Reader in(message.payload);
  switch (message.kind) {
    case Kind::heartbeat:
      status_[connection.rank] = in.string();
      break;
    case Kind::put: {
      const std::string key = in.string();
      const std::string value = in.string();
      values_[key] = value;
      for (int rank : std::exchange(waiting_[key], {}))
        if (Connection* waiter = connection_of(rank))
          send(*waiter, wire::Writer().string(key).string(value).message(Kind::value));
      break;
    }
    case Kind::get: {
      const std::string key = in.string();
      if (const auto found = values_.find(key); found != values_.end())
        send(connection, wire::Writer().string(key).string(found->second).message(Kind::value));
      else
        waiting_[key].insert(connection.rank);
      break;
    }
    case Kind::barrier:
      handle_barrier(connection, message.payload);
      break;
    case Kind::failure: {
      const int rank = static_cast<int>(in.u32());
      const auto code = static_cast<ExitCode>(in.u32());
      told_.insert(connection.rank);
      fail({rank, code, in.string()});
      break;
    }
    case Kind::goodbye:
      told_.insert(connection.rank);
      connection.finished = true;
      break;
    default:
      break;
  }
}

void Coordinator::handle_hello(Connection& connection, const std::string& payload) {
  const std::optional<Hello> hello = decode_hello(payload);
  // Another program, or another job's process: not our affair; it finds out by the closed connection.
  if (!hello || hello->token != options_.self.token) {
    connection.finished = true;
    return;
  }
  const Member member{hello->host, hello->pid, peer_address(connection.socket)};
  if (phase_ == Phase::failed) {
    told_.insert(hello->rank);
    return send(connection, failure_message(*failure_));
  }
  const std::string reason = misfit(*hello);
  if (reason.empty()) {
    connection.rank = hello->rank;
    members_[hello->rank] = member;
    hellos_[hello->rank] = *hello;
    if (std::cmp_equal(members_.size(), options_.self.world)) welcome_everybody();
    return;
  }
  const Failure failure{hello->rank, ExitCode::usage, reason};
  send(connection, failure_message(failure));
  // A run that is under way must not die of a process that was started by mistake.
  if (phase_ == Phase::gathering) fail(failure);
}

std::string Coordinator::misfit(const Hello& hello) const {
  const Hello& self = options_.self;
  const std::string who = describe(hello.rank, Member{hello.host, hello.pid, ""});
  const std::string zero = describe(0, Member{self.host, self.pid, ""});
  if (hello.world != self.world)
    return text(who, " was told that there are ", hello.world, " ranks, but ", zero, " that there are ",
                self.world, "; start all of them with the same world size");
  if (hello.rank < 0 || hello.rank >= self.world)
    return text(who, " does not exist in a run of ", self.world, " ranks");
  if (const auto twin = members_.find(hello.rank); twin != members_.end())
    return text("two processes say that they are rank ", hello.rank, ": pid ", twin->second.pid, " on ",
                twin->second.host, " and pid ", hello.pid, " on ", hello.host,
                "; give every process its own RANK");
  if (hello.build != self.build)
    return text(who, " is build ", hello.build, ", but ", zero, " is build ", self.build,
                "; install the same program on all hosts");
  if (hello.config != self.config)
    return text(who, " has configuration ", hello.config, ", but ", zero, " has ", self.config,
                "; start all ranks with the same file and the same flags");
  for (const auto& [rank, other] : hellos_)
    if (!hello.device.empty() && other.device == hello.device && other.host == hello.host)
      return text("ranks ", rank, " and ", hello.rank, " on ", hello.host, " both use device ", hello.device,
                  "; start at most as many ranks on a host as it has devices");
  return "";
}

// Addresses are as the coordinator sees them.  Its own host's ranks come through the loopback, which is no
// address for the others; they get the one by which the first rank from elsewhere came in.
void Coordinator::welcome_everybody() {
  std::string outward;
  for (const auto& connection : connections_)
    if (outward.empty() && connection->rank >= 0 && !is_loopback(members_.at(connection->rank).address))
      outward = own_address(connection->socket);
  wire::Writer table;
  for (auto& [rank, member] : members_) {
    if (is_loopback(member.address) && !outward.empty()) member.address = outward;
    table.string(member.host).u64(static_cast<uint64_t>(member.pid)).string(member.address);
  }
  phase_ = Phase::running;
  for (auto& connection : connections_)
    if (connection->rank >= 0) send(*connection, table.message(Kind::welcome));
}

void Coordinator::handle_barrier(Connection& connection, const std::string& payload) {
  wire::Reader in(payload);
  const std::string name = in.string();
  const milliseconds patience(in.u64());
  const auto [entry, first] = barriers_.try_emplace(name);
  Barrier& barrier = entry->second;
  if (first) barrier.deadline = Clock::now() + patience;
  barrier.arrived.insert(connection.rank);
  if (std::cmp_less(barrier.arrived.size(), options_.self.world)) return;
  for (auto& member : connections_)
    if (member->rank >= 0) send(*member, wire::Writer().string(name).message(Kind::release));
  barriers_.erase(entry);
}

void Coordinator::lost(Connection& connection, const std::string& how) {
  connection.finished = true;
  if (connection.rank < 0) return;
  told_.insert(connection.rank);
  if (phase_ == Phase::failed) return;
  const std::string& status = status_[connection.rank];
  fail(
      {connection.rank, ExitCode::peer,
       text(describe_rank(connection.rank), " ", how, status.empty() ? "" : "; last known of it: ", status)});
}

void Coordinator::check_deadlines() {
  const auto now = Clock::now();
  for (auto& connection : connections_) {
    const auto silence = now - connection->last_heard;
    if (connection->rank < 0 && silence > longest_silence_before_hello)
      connection->finished = true;
    else if (connection->rank >= 0 && phase_ == Phase::running && silence > options_.timeout)
      lost(*connection, text("has been silent for ", seconds(options_.timeout),
                             " s: it is stopped, or its host or network is down"));
  }
  if (phase_ == Phase::gathering && now > started_ + options_.init_timeout) {
    const std::set<int> missing = missing_ranks();
    fail({*missing.begin(), ExitCode::peer,
          text("only ", members_.size(), " of ", options_.self.world, " ranks came within ",
               seconds(options_.init_timeout), " s; missing: ", describe_ranks(missing),
               "; look at their output, and whether their hosts reach the master's port")});
  }
  for (const auto& [name, barrier] : barriers_) {
    if (phase_ == Phase::failed || now < barrier.deadline) continue;
    std::set<int> missing;
    for (int rank = 0; rank < options_.self.world; ++rank)
      if (!barrier.arrived.contains(rank)) missing.insert(rank);
    const int first = *missing.begin();
    fail({first, ExitCode::peer,
          text("barrier '", name, "' waited in vain for ", describe_ranks(missing), "; last known of rank ",
               first, ": ", status_[first].empty() ? "nothing" : status_[first])});
  }
}

void Coordinator::send_heartbeats() {
  for (auto& connection : connections_)
    if (connection->rank >= 0 && connection->outbox.empty())
      send(*connection, wire::Writer().string("").message(Kind::heartbeat));
}

void Coordinator::report_progress() {
  if (phase_ != Phase::gathering || Clock::now() < next_report_) return;
  next_report_ = Clock::now() + std::chrono::seconds(10);
  const std::set<int> missing = missing_ranks();
  if (options_.log && !missing.empty())
    options_.log(text("waiting for ", describe_ranks(missing), " (", missing.size(), " of ",
                      options_.self.world, " missing)"));
}

void Coordinator::fail(const Failure& failure) {
  if (phase_ == Phase::failed) return;  // the first one counts
  phase_ = Phase::failed;
  failure_ = failure;
  for (auto& connection : connections_) {
    if (connection->rank < 0 || connection->finished) continue;
    send(*connection, failure_message(failure));
    told_.insert(connection->rank);
  }
}

Coordinator::Connection* Coordinator::connection_of(int rank) {
  for (auto& connection : connections_)
    if (connection->rank == rank) return connection.get();
  return nullptr;
}

std::set<int> Coordinator::missing_ranks() const {
  std::set<int> missing;
  for (int rank = 0; rank < options_.self.world; ++rank)
    if (!members_.contains(rank)) missing.insert(rank);
  return missing;
}

std::string Coordinator::describe_rank(int rank) const {
  const auto member = members_.find(rank);
  return member == members_.end() ? text("rank ", rank) : describe(rank, member->second);
}

// "rank 3 (node1, pid 12)" or "ranks 3, 7, 9 and 12 more".
std::string Coordinator::describe_ranks(const std::set<int>& ranks) const {
  if (ranks.size() == 1) return describe_rank(*ranks.begin());
  constexpr size_t listed = 16;
  std::string names;
  size_t count = 0;
  for (int rank : ranks)
    if (count++ < listed) names += text(names.empty() ? "" : ", ", rank);
  return text("ranks ", names, ranks.size() > listed ? text(" and ", ranks.size() - listed, " more") : "");
}

}  // namespace hearth
