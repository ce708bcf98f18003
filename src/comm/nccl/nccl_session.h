// NcclSession: all calls of NCCL in this process, and the thread that watches over them.
//
// NCCL's communicators are non-blocking: a call returns at once, and is repeated as a question ("is it
// done?") until it is, or until the run has failed.  What has been given to the stream is a flight.  The
// watchdog follows the flights, asks NCCL for errors that came later, and ends everything when another rank
// has failed or an operation does not end: ncclCommAbort stops kernels that wait for a dead peer, so that a
// host that waits for the stream goes on, and meets the error at the next call.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/control_plane.h"
#include "device/cuda/api/nccl.h"
#include "device/cuda/cuda_device.h"

namespace hearth {

// The ranks of one communicator, for messages.
struct NcclGroup {
  std::string name;        // "data"
  std::vector<int> ranks;  // of the run, by rank in the group
};

// What an operation waits for: ranks of the group that must do the same.
struct NcclMeeting {
  std::string name;        // "all_reduce(sum) 4 of 4096 F32": unique in the group, the same on its ranks
  std::vector<int> peers;  // of the run
};

class NcclSession {
 public:
  NcclSession(ControlPlane& control, cuda::CudaDevice& device, const nccl::Api& api);
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  // The communicator of all ranks.
  nccl::Comm connect_all();
  // This rank's part of it.  Collective over `all`.
  nccl::Comm split(nccl::Comm all, int color, int key, const std::string& name);
  // The orderly end of a communicator, or nothing after a failure.  Collective over its ranks.
  void release(nccl::Comm comm) noexcept;

  using Call = std::function<nccl::Result(const nccl::Api&, cudaStream_t)>;
  using Group = std::shared_ptr<const NcclGroup>;
  // Gives an operation to the communication stream, after the work of the compute stream so far.
  Request launch(std::vector<NcclMeeting> meetings, const Group& group, nccl::Comm comm, const Call& call);
  // Waits on the host until everything that was launched has ended.
  void drain(const std::string& what);
  void throw_if_failed(const std::string& what);

  // From any thread.
  void abort() noexcept;

 private:
  // An operation in the stream.
  struct Flight {
    std::vector<NcclMeeting> meetings;  // at least one
    Group group;
    Event started, ended;
    std::optional<Clock::time_point> running_since;  // as far as the watchdog has seen
    bool announced = false;

    std::string what() const;
    std::string announcement(const NcclMeeting& meeting, int rank) const;
  };

  // Calls NCCL, and asks until `comm` (which the call may set) is done.
  void call(const std::string& what, Clock::time_point deadline, nccl::Comm& comm,
            const std::function<nccl::Result()>& function);
  // Ends the run for this reason unless it has failed already; throws the failure.
  [[noreturn]] void fail(ExitCode code, const std::string& what, const std::string& why);
  std::string words(nccl::Result result, nccl::Comm comm) const;

  // ---- the watchdog's
  void watch();
  void look_for_errors();
  void look_at_flights();
  void report_stuck(const Flight& flight);
  void abort_all() noexcept;

  ControlPlane& control_;
  cuda::CudaDevice& device_;
  const nccl::Api api_;

  std::timed_mutex nccl_mutex_;    // no two threads are in NCCL at once
  std::vector<nccl::Comm> comms_;  // under nccl_mutex_
  bool aborted_ = false;           // under nccl_mutex_: the communicators are gone

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Flight> flights_;  // in the order of the stream
  bool stopping_ = false;

  std::atomic<bool> failed_ = false;  // nothing may be launched any more
  int listener_ = -1;
  std::thread watchdog_;
};

}  // namespace hearth
