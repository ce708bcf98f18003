// The watchdog asks NCCL for errors that come after a call: with every rank alive, no operation in the stream
// and nobody in a call, it alone can find one.
#include <gtest/gtest.h>

#include <atomic>

#include "comm/nccl/nccl_session.h"
#include "emulator/comm/gpu_ranks.h"

namespace hearth {
namespace {

using nccl::Result;
using std::chrono::milliseconds;

// Of this process: a rank.  NCCL's functions are C's and have no other place to look.
struct Broken {
  std::atomic<Result> error = Result::success;  // that ncclCommGetAsyncError reports, once it is set
  std::atomic<int> aborts = 0;
  Result (*ask)(nccl::Comm, Result*) = nullptr;
  Result (*abort)(nccl::Comm) = nullptr;

  static Broken& here() {
    static Broken broken;
    return broken;
  }
};

Result ask(nccl::Comm comm, Result* error) {
  const Result result = Broken::here().ask(comm, error);
  if (Broken::here().error != Result::success) *error = Broken::here().error;
  return result;
}

Result abort(nccl::Comm comm) {
  ++Broken::here().aborts;
  return Broken::here().abort(comm);
}

nccl::Api breakable_api() {
  nccl::Api api;
  const auto problem = nccl::open(api);
  require(!problem, problem.value_or(""));
  Broken::here().ask = std::exchange(api.comm_get_async_error, &ask);
  Broken::here().abort = std::exchange(api.comm_abort, &abort);
  return api;
}

constexpr int broken_rank = 1;

// NCCL of rank 1 meets `error` (none: nothing happens); both ranks wait for the end of the run, but only
// outside NCCL.
std::vector<RankResult> with_an_error(Result error) {
  return run_ranks(
      2,
      [error](ControlPlane& control) {
        const auto device = device_of(Transport::nccl, control.rank(), 2);
        NcclSession session(control, dynamic_cast<cuda::CudaDevice&>(*device), breakable_api());
        const nccl::Comm all = session.connect_all();
        control.barrier("connected");
        if (control.rank() == broken_rank) Broken::here().error = error;
        const auto failure = control.wait_for_failure(milliseconds(error == Result::success ? 500 : 5000));
        if (error == Result::success) {
          require(!failure, "a failure: ", failure ? failure->reason : "");
          control.barrier("nothing happened");
          return session.release(all);
        }
        require(failure.has_value(), "nobody noticed");
        const Clock::time_point deadline = Clock::now() + milliseconds(3000);
        while (Broken::here().aborts == 0 && Clock::now() < deadline)
          std::this_thread::sleep_for(milliseconds(5));
        require(Broken::here().aborts == 1, "the communicator was aborted ", Broken::here().aborts, " times");
        session.throw_if_failed("the test");
        require(false, "the session goes on");
      },
      20);
}

void expect_everybody_knows(const std::vector<RankResult>& ranks, ExitCode code, const std::string& why) {
  for (const RankResult& rank : ranks) {
    EXPECT_TRUE(rank.ended) << "it hangs";
    EXPECT_EQ(rank.code, static_cast<int>(code)) << rank.output;
    EXPECT_LT(rank.seconds, 4) << rank.output;
    EXPECT_NE(rank.output.find(" failed in the communication of the GPUs: "), std::string::npos)
        << rank.output;
    EXPECT_NE(rank.output.find("rank 1 ("), std::string::npos) << rank.output;
    EXPECT_NE(rank.output.find(why), std::string::npos) << rank.output;
  }
}

TEST(NcclWatchdog, FindsAnErrorOfTheNetworkThatNobodyAskedFor) {
  expect_everybody_knows(with_an_error(Result::system_error), ExitCode::peer, "unhandled system error");
}

TEST(NcclWatchdog, FindsAnErrorOfTheGpu) {
  expect_everybody_knows(with_an_error(Result::unhandled_cuda_error), ExitCode::device,
                         "unhandled cuda error");
}

TEST(NcclWatchdog, IsQuietWhereNothingIsWrong) {
  for (const RankResult& rank : with_an_error(Result::success))
    EXPECT_EQ(rank.code, 0) << rank.output;
}

}  // namespace
}  // namespace hearth
