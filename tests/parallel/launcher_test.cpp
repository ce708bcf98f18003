// The launcher, with shell scripts as ranks.
#include "parallel/launcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "comm/socket.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A launcher in a process of its own, whose ranks run `sh -c script`.
class Launched {
 public:
  explicit Launched(const std::string& script, int n, LaunchOptions options = {}) {
    options.processes = n;
    if (options.settle == milliseconds(2000)) options.settle = milliseconds(300);
    if (options.grace == milliseconds(10'000)) options.grace = milliseconds(500);
    int input[2];
    EXPECT_EQ(::pipe2(input, O_CLOEXEC), 0);
    control_ = input[1];
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(input[0], STDIN_FILENO);
      ::close(input[1]);
      ::dup2(::open((folder_ / "out").c_str(), O_CREAT | O_WRONLY, 0600), STDOUT_FILENO);
      ::dup2(::open((folder_ / "err").c_str(), O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
      int code = 99;
      try {
        code = launch(options, {"/bin/sh", "-c", script, "sh", folder_.path().string()});
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        code = static_cast<int>(error.code());
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    ::close(input[0]);
  }
  ~Launched() {
    close_input();
    if (!waited_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    waited_ = true;
    seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void signal(int number) { ::kill(pid_, number); }
  void type(const std::string& line) {
    EXPECT_EQ(::write(control_, line.data(), line.size()), ssize_t(line.size()));
  }
  void close_input() {
    if (control_ >= 0) ::close(control_);
    control_ = -1;
  }

  std::string out() const { return read_file(folder_ / "out"); }
  std::string err() const { return read_file(folder_ / "err"); }
  std::string last_line() const {
    const std::string all = err();
    const size_t end = all.find_last_not_of('\n');
    return all.substr(all.rfind('\n', end) + 1, end - all.rfind('\n', end));
  }

  // Ranks write `$$` to files pid-*; waits for n of them.
  std::vector<pid_t> pids(size_t n) const {
    std::vector<pid_t> found;
    for (int tries = 0; tries < 500 && found.size() < n; ++tries) {
      found.clear();
      for (const auto& entry : fs::directory_iterator(folder_.path()))
        if (entry.path().filename().string().starts_with("pid-")) {
          const std::string text = read_file(entry.path());
          if (text.ends_with("\n")) found.push_back(std::stoi(text));
        }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return found;
  }
  pid_t pid() const { return pid_; }

  double seconds = 0;

 private:
  TempDir folder_;
  pid_t pid_ = -1;
  int control_ = -1;
  bool waited_ = false;
  steady_clock::time_point start_ = steady_clock::now();
};

bool gone(pid_t pid) {
  for (int tries = 0; tries < 200; ++tries) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    if (!(stat >> number >> name >> state) || state == "Z" || state == "X") return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

constexpr const char* note_pid = "echo $$ > $1/new-$RANK; mv $1/new-$RANK $1/pid-$RANK; ";

TEST(Launcher, RanksKnowTheirPlaceAndLinesTellTheRank) {
  Launched run("echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR; echo e$RANK >&2; printf end", 3);
  EXPECT_EQ(run.wait(), 0);
  for (const char* line :
       {"[0] 0 3 0 127.0.0.1\n", "[1] 1 3 1 127.0.0.1\n", "[2] 2 3 2 127.0.0.1\n", "[2] end\n"})
    EXPECT_NE(run.out().find(line), std::string::npos) << run.out();
  EXPECT_NE(run.err().find("[1] e1\n"), std::string::npos) << run.err();
}

TEST(Launcher, AllRanksHaveOneTokenAndPortAndOnlyRankZeroTheListener) {
  Launched run("echo $HEARTH_TOKEN $MASTER_PORT listener=$HEARTH_LISTENER", 2);
  EXPECT_EQ(run.wait(), 0);
  const std::string out = run.out();
  const auto line_of = [&](const std::string& prefix) {
    const size_t begin = out.find(prefix) + prefix.size();
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  const std::string zero = line_of("[0] "), one = line_of("[1] ");
  EXPECT_GE(zero.find(' '), 32u);
  EXPECT_EQ(zero.substr(0, zero.find("listener")), one.substr(0, one.find("listener")));
  EXPECT_NE(zero.back(), '=');
  EXPECT_EQ(one.back(), '=');
}

TEST(Launcher, RanksOfASecondHost) {
  LaunchOptions options;
  options.first_rank = 4;
  options.world = 6;
  options.host = "node1";
  options.port = 29500;
  Launched run("echo $RANK of $WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR:$MASTER_PORT", 2, options);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_NE(run.out().find("[5] 5 of 6 local 1 at node1:29500"), std::string::npos) << run.out();
}

TEST(Launcher, LinesNeverMix) {
  Launched run(
      "i=0; while [ $i -lt 300 ]; do echo x$RANK$RANK$RANK$RANK$RANK$RANK$RANK$RANK; i=$((i+1)); done", 4);
  EXPECT_EQ(run.wait(), 0);
  std::istringstream lines(run.out());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    ASSERT_EQ(line, "[" + line.substr(1, 1) + "] x" + std::string(8, line[1]));
  EXPECT_EQ(count, 1200);
}

TEST(Launcher, FirstFailureIsTheLastLineAndTheExitCode) {
  Launched run(
      "if [ $RANK = 1 ]; then echo shard 7 is torn >&2; exit 65; fi; trap 'echo stopped >&2; exit 71' TERM; "
      "sleep 20 & wait",
      3);
  EXPECT_EQ(run.wait(), 65);
  EXPECT_LT(run.seconds, 5);
  EXPECT_NE(run.last_line().find("launch: rank 1 (" + host_name() + ", pid "), std::string::npos)
      << run.err();
  EXPECT_NE(run.last_line().find("ended with exit code 65: shard 7 is torn"), std::string::npos) << run.err();
  EXPECT_NE(run.err().find("[0] stopped"), std::string::npos) << run.err();
}

TEST(Launcher, ARankThatWasKilledIsNamed) {
  Launched run("[ $RANK = 2 ] && kill -9 $$; exec sleep 20", 4);
  EXPECT_EQ(run.wait(), 137);
  EXPECT_NE(run.last_line().find("launch: rank 2 (" + host_name() + ", pid "), std::string::npos);
  EXPECT_NE(run.last_line().find("was killed by signal 9 (Killed)"), std::string::npos);
}

// What was known of it, in the words of a rank that outlived it.
TEST(Launcher, ARankThatWasKilledIsSpokenOfByAnother) {
  Launched run(
      std::string(note_pid) +
          "[ $RANK = 1 ] && kill -9 $$; while ! [ -f $1/pid-1 ]; do sleep 0.01; done; sleep 0.1; "
          "[ $RANK = 2 ] && echo \"lost rank 1 (there, pid $(cat $1/pid-1)) in step 7\" >&2; exit 71",
      3);
  EXPECT_EQ(run.wait(), 137);
  EXPECT_NE(run.last_line().find(") in step 7"), std::string::npos) << run.err();
}

TEST(Launcher, WhoIgnoresTermIsKilled) {
  Launched run(std::string(note_pid) + "trap '' TERM; [ $RANK = 0 ] && exit 70; sleep 20 & wait; wait", 2);
  const auto pids = run.pids(2);
  EXPECT_EQ(run.wait(), 70);
  EXPECT_LT(run.seconds, 5);
  for (pid_t pid : pids)
    EXPECT_TRUE(gone(pid));
}

// A stopped process hears no TERM; the KILL comes soon, however long a planned stop may take.
TEST(Launcher, AStoppedRankIsKilledSoonAfterAFailure) {
  LaunchOptions options;
  options.grace = milliseconds(9000);
  Launched run(std::string(note_pid) + "[ $RANK = 0 ] && { sleep 0.2; exit 71; }; kill -STOP $$", 2, options);
  EXPECT_EQ(run.wait(), 71);
  EXPECT_LT(run.seconds, 5);
}

// A rank that a signal killed before it could handle it has saved nothing, and the others cannot either.
TEST(Launcher, ARankKilledByTermIsNoPlannedStop) {
  LaunchOptions options;
  options.grace = milliseconds(9000);
  Launched run("[ $RANK = 0 ] && kill -TERM $$; trap '' TERM; sleep 20 & wait; wait", 2, options);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_LT(run.seconds, 5);
}

// After a planned stop the others are not hurried: a second signal would cut their saving short.
TEST(Launcher, APlannedStopLeavesTheOthersTime) {
  LaunchOptions options;
  options.grace = milliseconds(5000);
  Launched run("[ $RANK = 0 ] && exit 75; trap 'exit 1' TERM; sleep 0.8 & wait; echo saved; exit 75", 2,
               options);
  EXPECT_EQ(run.wait(), 75);
  EXPECT_NE(run.out().find("[1] saved"), std::string::npos);
}

TEST(Launcher, SignalsReachEveryRankOnce) {
  for (const auto& [number, name] : {std::pair(SIGINT, "INT"), {SIGTERM, "TERM"}, {SIGUSR1, "USR1"}}) {
    Launched run(std::string("n=0; trap 'n=$((n+1))' ") + name + "; " + note_pid +
                     "while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo got $n; exit 143",
                 3);
    run.pids(3);
    std::this_thread::sleep_for(milliseconds(100));
    run.signal(number);
    EXPECT_EQ(run.wait(), 143);
    for (const char* line : {"[0] got 1", "[1] got 1", "[2] got 1"})
      EXPECT_NE(run.out().find(line), std::string::npos) << name << run.out();
  }
}

// One direct child per rank, each in a process group of its own.
TEST(Launcher, RanksAreDirectChildrenInTheirOwnGroups) {
  Launched run(std::string(note_pid) + "exec sleep 20", 3);
  for (pid_t pid : run.pids(3)) {
    EXPECT_EQ(::getpgid(pid), pid);
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state, parent;
    stat >> number >> name >> state >> parent;
    EXPECT_EQ(parent, std::to_string(run.pid()));
  }
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
}

TEST(Launcher, NoOrphansWhenTheLauncherIsKilled) {
  Launched run(std::string(note_pid) + "exec sleep 20", 3);
  const auto pids = run.pids(3);
  EXPECT_EQ(pids.size(), 3u);
  run.signal(SIGKILL);
  EXPECT_EQ(run.wait(), 137);
  for (pid_t pid : pids)
    EXPECT_TRUE(gone(pid));
}

TEST(Launcher, NothingIsLeftOfARanksOwnChildren) {
  Launched run("sleep 20 & echo $! > $1/new-$RANK; mv $1/new-$RANK $1/pid-$RANK; exit 0", 2);
  const auto pids = run.pids(2);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_LT(run.seconds, 5);
  for (pid_t pid : pids)
    EXPECT_TRUE(gone(pid));
}

TEST(Launcher, ControlledByItsInput) {
  LaunchOptions options;
  options.controlled = true;
  {
    Launched run(std::string("trap 'echo usr1; exit 75' USR1; ") + note_pid +
                     "echo token $HEARTH_TOKEN; sleep 20 & wait",
                 2, options);
    run.type("s3cret\n");
    run.pids(2);
    run.type("USR1\n");
    EXPECT_EQ(run.wait(), 75);
    EXPECT_NE(run.out().find("[1] token s3cret"), std::string::npos) << run.out();
    EXPECT_NE(run.out().find("[1] usr1"), std::string::npos) << run.out();
  }
  Launched run(std::string("trap 'exit 143' TERM; ") + note_pid + "sleep 20 & wait", 2, options);
  run.type("token\n");
  run.pids(2);
  run.close_input();
  EXPECT_EQ(run.wait(), 143);
  EXPECT_LT(run.seconds, 10);
}

TEST(Launcher, RefusesWhatCannotWork) {
  const auto refusal = [](LaunchOptions options, const std::vector<std::string>& argv) {
    try {
      launch(options, argv);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  LaunchOptions options;
  options.processes = 2;
  EXPECT_NE(refusal(options, {"/no/such/program"}).find("cannot run '/no/such/program'"), std::string::npos);
  options.world = 1;
  EXPECT_NE(refusal(options, {"true"}).find("do not fit in a world of 1"), std::string::npos);
  options.first_rank = 2;
  options.world = 4;
  EXPECT_NE(refusal(options, {"true"}).find("--master HOST:PORT"), std::string::npos);
  options.processes = 0;
  EXPECT_NE(refusal(options, {"true"}).find("at least one"), std::string::npos);
}

TEST(Launcher, CoresAreDivided) {
  using Cores = std::vector<int>;
  const Cores eight{0, 1, 2, 3, 8, 9, 10, 11};
  EXPECT_EQ(share_of_cores(eight, 0, 2), Cores({0, 1, 2, 3}));
  EXPECT_EQ(share_of_cores(eight, 1, 2), Cores({8, 9, 10, 11}));
  EXPECT_EQ(share_of_cores(eight, 2, 3), Cores({9, 10, 11}));
  EXPECT_EQ(share_of_cores({4, 5}, 3, 8), Cores({5}));
  EXPECT_EQ(share_of_cores({}, 0, 2), Cores());
}

}  // namespace
}  // namespace hearth
