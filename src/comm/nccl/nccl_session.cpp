#include "comm/nccl/nccl_session.h"

#include <algorithm>
#include <cstdio>
#include <future>

#include "base/error.h"

namespace hearth {
namespace {

using nccl::Result;
using std::chrono::milliseconds;

// What this rank did wrong, and what other ranks or the network did.
ExitCode code_of(Result result) {
  const bool own_fault = result == Result::unhandled_cuda_error || result == Result::invalid_usage;
  return own_fault ? ExitCode::device : ExitCode::peer;
}

// The control plane notices a silent rank after its timeout, and knows its name: it goes first.
constexpr milliseconds margin{2'000};
// How long an error waits for the control plane to say whose fault it is.
constexpr milliseconds verdict_patience{1'000};
constexpr milliseconds watch_interval{20};
// The orderly end follows a barrier: whoever is not there now is not coming.
constexpr milliseconds farewell_patience{5'000};
// NCCL is known to hang in aborting, too.
constexpr std::chrono::seconds abort_patience{20};

double seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

nccl::Config config() {
  nccl::Config c;
  c.blocking = 0;
  c.split_share = 0;  // shared resources would let one communicator's abort harm another
  return c;
}

}  // namespace

NcclSession::NcclSession(ControlPlane& control, cuda::CudaDevice& device, const nccl::Api& api)
    : control_(control), device_(device), api_(api) {
  listener_ = control_.on_failure([this] { abort(); });
  watchdog_ = std::thread([this] { watch(); });
}

NcclSession::~NcclSession() {
  control_.stop_listening(listener_);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
  if (!comms_.empty()) abort_all();  // what was not released
}

// ---- making communicators

nccl::Comm NcclSession::connect_all() {
  const std::string what = text("NCCL's start on ", control_.world(), " ranks");
  const std::string key = "nccl/unique id";
  nccl::UniqueId id{};
  if (control_.rank() == 0) {
    const Result result = api_.get_unique_id(&id);
    if (result != Result::success) fail(ExitCode::device, what, words(result, nullptr));
    control_.put(key, std::string(id.internal, sizeof id.internal));
  } else {
    const std::string value = control_.get(key);
    check(value.size() == sizeof id.internal, "a unique id of ", value.size(), " bytes");
    value.copy(id.internal, sizeof id.internal);
  }
  nccl::Comm all = nullptr;
  nccl::Config c = config();
  call(what, Clock::now() + control_.init_timeout(), all,
       [&] { return api_.comm_init_rank_config(&all, control_.world(), id, control_.rank(), &c); });
  return all;
}

// The new communicator's handle is there when the old one's call is done; then the new one connects.
nccl::Comm NcclSession::split(nccl::Comm all, int color, int key, const std::string& name) {
  const std::string what = text("connecting the ", name, " axis");
  const auto deadline = Clock::now() + control_.init_timeout();
  nccl::Comm part = nullptr;
  nccl::Config c = config();
  call(what, deadline, all, [&] { return api_.comm_split(all, color, key, &part, &c); });
  check(part != nullptr, "NCCL split without a communicator");
  call(what, deadline, part, [&] { return Result::in_progress; });
  return part;
}

void NcclSession::release(nccl::Comm comm) noexcept {
  bool orderly = !failed_ && !control_.failure();
  try {
    if (orderly)
      call("the end of NCCL", Clock::now() + farewell_patience, comm,
           [&] { return api_.comm_finalize(comm); });
  } catch (const std::exception&) {
    orderly = false;  // the run has ended; this is only tidying up
  }
  const std::lock_guard lock(nccl_mutex_);
  if (aborted_) return;
  std::erase(comms_, comm);
  if (orderly)
    api_.comm_destroy(comm);
  else
    api_.comm_abort(comm);
}

// ---- calls

std::string NcclSession::Flight::what() const {
  return text(meetings.front().name, " on the ", group->name, " axis");
}

// The key under which a rank says that it waits in an operation.
std::string NcclSession::Flight::announcement(const NcclMeeting& meeting, int rank) const {
  std::string key = text("nccl/", group->name);
  for (int member : group->ranks)
    key += text("/", member);
  return text(key, "/", meeting.name, "/", rank);
}

std::string NcclSession::words(Result result, nccl::Comm comm) const {
  const char* last = api_.get_last_error(comm);
  std::string said = text("NCCL says: ", api_.get_error_string(result));
  if (last && *last) said += text(" (", last, ")");
  return said;
}

void NcclSession::throw_if_failed(const std::string& what) {
  if (!failed_) return;
  if (const auto known = control_.wait_for_failure(verdict_patience))
    throw Error(known->code,
                text(known->reason, " [", control_.describe_rank(control_.rank()), " was in ", what, "]"));
  throw Error(ExitCode::peer, text(what, " was given up"));
}

void NcclSession::fail(ExitCode code, const std::string& what, const std::string& why) {
  // An error of NCCL's is often another rank's end, which the control plane knows better.
  const bool known = control_.wait_for_failure(verdict_patience).has_value();
  failed_ = true;
  if (known) throw_if_failed(what);
  const std::string reason = text(control_.describe_rank(control_.rank()), " failed in ", what, ": ", why);
  control_.fail(code, reason);
  throw Error(code, reason);
}

void NcclSession::call(const std::string& what, Clock::time_point deadline, nccl::Comm& comm,
                       const std::function<Result()>& function) {
  Result result = Result::in_progress;
  std::string why;
  bool asked = false;
  for (milliseconds pause(0); result == Result::in_progress;
       pause = std::min(pause + milliseconds(1), milliseconds(5))) {
    if (asked) std::this_thread::sleep_for(pause);
    throw_if_failed(what);
    const std::lock_guard lock(nccl_mutex_);
    if (aborted_) continue;  // failed_ is set
    if (!asked)
      result = function();
    else if (api_.comm_get_async_error(comm, &result) != Result::success)
      result = Result::internal_error;
    asked = true;
    if (comm && std::find(comms_.begin(), comms_.end(), comm) == comms_.end()) comms_.push_back(comm);
    if (result != Result::success && result != Result::in_progress) why = words(result, comm);
    if (result == Result::in_progress && Clock::now() >= deadline) {
      why =
          "it did not end in time; is a firewall between the hosts, or the wrong network interface in use "
          "(NCCL_SOCKET_IFNAME)?  NCCL_DEBUG=INFO tells more";
      break;
    }
  }
  if (result == Result::success) return;
  fail(code_of(result), what, why);
}

// Before: the compute stream's work so far; after: what waits for the request.
Request NcclSession::launch(std::vector<NcclMeeting> meetings, const Group& group, nccl::Comm comm,
                            const Call& call) {
  Flight flight{std::move(meetings), group, {}, {}, std::nullopt};
  const std::string what = flight.what();
  throw_if_failed(what);
  device_.wait(Stream::communication, device_.record(Stream::compute));
  flight.started = device_.record(Stream::communication);
  const cudaStream_t stream = device_.stream(Stream::communication);
  this->call(what, Clock::now() + control_.timeout() + margin, comm, [&] { return call(api_, stream); });
  const Event ended = device_.record(Stream::communication);
  flight.ended = ended;
  {
    const std::lock_guard lock(mutex_);
    flights_.push_back(std::move(flight));
  }
  return Request([this, ended, what] {
    throw_if_failed(what);
    device_.wait(Stream::compute, ended);
  });
}

void NcclSession::drain(const std::string& what) {
  const Event end = device_.record(Stream::communication);
  for (milliseconds pause(0); !device_.reached(end);
       pause = std::min(pause + milliseconds(1), milliseconds(5))) {
    throw_if_failed(what);
    std::this_thread::sleep_for(pause);
  }
  throw_if_failed(what);
}

void NcclSession::abort() noexcept {
  failed_ = true;
  changed_.notify_all();
}

// ---- the watchdog

void NcclSession::watch() {
  try {
    device_.enter_thread();
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, watch_interval, [&] { return stopping_ || failed_; });
        if (stopping_) return;
      }
      if (failed_) break;
      look_for_errors();
      look_at_flights();
    }
  } catch (const Error& error) {
    control_.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    control_.fail(ExitCode::device, error.what());
  }
  failed_ = true;
  abort_all();
}

// Errors that NCCL has met after the call returned.
void NcclSession::look_for_errors() {
  Result found = Result::success;
  std::string why;
  {
    const std::unique_lock lock(nccl_mutex_, std::try_to_lock);
    if (!lock) return;  // somebody is in NCCL: he will see for himself
    for (nccl::Comm comm : comms_) {
      Result result = Result::success;
      if (api_.comm_get_async_error(comm, &result) != Result::success) result = Result::internal_error;
      if (result == Result::success || result == Result::in_progress) continue;
      found = result;
      why = words(result, comm);
    }
  }
  if (found == Result::success) return;
  std::string what = "the communication of the GPUs";
  {
    const std::lock_guard lock(mutex_);
    if (!flights_.empty()) what = flights_.front().what();
  }
  fail(code_of(found), what, why);
}

// The stream works on the first flight only.
void NcclSession::look_at_flights() {
  Flight first;
  {
    const std::lock_guard lock(mutex_);
    while (!flights_.empty() && device_.reached(flights_.front().ended))
      flights_.pop_front();
    if (flights_.empty()) return;
    Flight& flight = flights_.front();
    if (!flight.running_since && device_.reached(flight.started)) flight.running_since = Clock::now();
    if (!flight.running_since) return;
    const auto age = Clock::now() - *flight.running_since;
    if (age < control_.timeout() / 2) return;
    first = flight;
    flight.announced = true;
  }
  if (!first.announced)
    for (const NcclMeeting& meeting : first.meetings)
      control_.put(first.announcement(meeting, control_.rank()), "here");
  if (Clock::now() - *first.running_since >= control_.timeout() + margin) report_stuck(first);
}

// Every rank that waits has said so long ago: a rank that has not is the one that is waited for.
void NcclSession::report_stuck(const Flight& flight) {
  const auto until = Clock::now() + verdict_patience;
  for (const NcclMeeting& meeting : flight.meetings)
    for (int rank : meeting.peers) {
      const auto left = std::max(milliseconds(50), std::chrono::ceil<milliseconds>(until - Clock::now()));
      if (control_.look_up(flight.announcement(meeting, rank), left)) continue;
      throw Error(ExitCode::peer,
                  text(control_.describe_rank(rank), " did not take part in ", meeting.name, " on the ",
                       flight.group->name, " axis within ", seconds(control_.timeout() + margin), " s, says ",
                       control_.describe_rank(control_.rank()), ": it is stuck, or in another operation"));
    }
  throw Error(ExitCode::peer, text(flight.what(), " does not end although all its ranks are in it, says ",
                                   control_.describe_rank(control_.rank()),
                                   ": the network or a GPU link is down (NCCL_DEBUG=INFO tells more)"));
}

// Kernels that wait for a peer end, with rubbish in their output.
void NcclSession::abort_all() noexcept {
  const auto work = [this] {
    const std::unique_lock lock(nccl_mutex_, std::chrono::seconds(5));  // a thread stuck in NCCL gets out so
    aborted_ = true;
    for (nccl::Comm comm : comms_)
      api_.comm_abort(comm);
    comms_.clear();
  };
  const auto done = std::async(std::launch::async, work);
  if (done.wait_for(abort_patience) == std::future_status::ready) return;
  const auto failure = control_.failure();
  std::fprintf(stderr, "%s; and NCCL does not stop\n",
               failure ? failure->reason.c_str() : "the run has failed");
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(failure ? failure->code : ExitCode::peer));
}

}  // namespace hearth
