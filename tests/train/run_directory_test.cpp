// The run directory: one run at a time, whoever died; nothing is left by a refusal.
#include "train/run_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

template <class Action>
std::string usage_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_contains(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << sentence;
}

std::string host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// A process that holds a run directory until it is killed.
class OtherRun {
 public:
  explicit OtherRun(const fs::path& path) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunDirectory run(path);
      if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      for (;;)
        ::pause();
    }
    char ready;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~OtherRun() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(RunDirectory, IsCreatedWithItsParents) {
  const TempDir dir;
  const RunDirectory run(dir / "a/b/run");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/run"));
  EXPECT_EQ(run.metrics(), dir / "a/b/run/metrics.jsonl");
  EXPECT_EQ(run.checkpoints(), dir / "a/b/run/checkpoints");
  EXPECT_EQ(run.note(), "");
  EXPECT_EQ(read_file(run.path() / "lock"), text(::getpid(), " ", host(), "\n"));
}

TEST(RunDirectory, ASecondRunIsRefusedNamingTheFirst) {
  const TempDir dir;
  OtherRun other(dir / "run");
  const std::string sentence = usage_error([&] { RunDirectory run(dir / "run"); });
  expect_contains(sentence, text("is in use by process ", other.pid(), " on host ", host()));
  expect_contains(sentence, (dir / "run").string());
}

TEST(RunDirectory, TheLockOfAKilledProcessIsTakenOverWithANote) {
  const TempDir dir;
  OtherRun other(dir / "run");
  const pid_t pid = other.pid();
  other.kill();
  const RunDirectory run(dir / "run");
  EXPECT_EQ(run.note(),
            text("took over the lock of process ", pid, " on host ", host(), ", which did not end in order"));
}

TEST(RunDirectory, AnotherHostIsNamed) {
  const TempDir dir;
  fs::create_directory(dir / "run");
  std::ofstream(dir / "run/lock") << "4711 elsewhere\n";
  const RunDirectory run(dir / "run");
  expect_contains(run.note(), "process 4711 on host elsewhere");
  expect_contains(run.note(), "make sure that it no longer runs there");
}

TEST(RunDirectory, AnOrderlyEndLeavesNoNote) {
  const TempDir dir;
  { const RunDirectory run(dir / "run"); }
  const RunDirectory again(dir / "run");
  EXPECT_EQ(again.note(), "");
}

TEST(RunDirectory, JunkInTheLockFileIsNobody) {
  const TempDir dir;
  fs::create_directory(dir / "run");
  std::ofstream(dir / "run/lock") << std::string(5000, 'x');
  const RunDirectory run(dir / "run");
  EXPECT_EQ(run.note(), "");
  EXPECT_EQ(read_file(run.path() / "lock"), text(::getpid(), " ", host(), "\n"));
}

TEST(RunDirectory, Used) {
  const TempDir dir;
  EXPECT_FALSE(RunDirectory::used(dir / "absent"));
  { const RunDirectory run(dir / "run"); }
  EXPECT_FALSE(RunDirectory::used(dir / "run"));
  std::ofstream(dir / "run/metrics.jsonl").close();
  EXPECT_FALSE(RunDirectory::used(dir / "run"));
  fs::create_directories(dir / "run/checkpoints/step-00000001");
  EXPECT_TRUE(RunDirectory::used(dir / "run"));
  fs::remove_all(dir / "run/checkpoints");
  std::ofstream(dir / "run/metrics.jsonl") << "{}\n";
  EXPECT_TRUE(RunDirectory::used(dir / "run"));
}

TEST(RunDirectory, PlacesThatCannotBeUsed) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  expect_contains(usage_error([&] { RunDirectory::check_writable(dir / "file"); }), "is not a directory");
  expect_contains(usage_error([&] { RunDirectory::check_writable(dir / "file/run"); }),
                  "file is not a directory");
  usage_error([&] { RunDirectory run(dir / "file"); });
  usage_error([&] { RunDirectory run(dir / "file/run"); });
  usage_error([&] { RunDirectory::check_writable("/proc/run"); });
  usage_error([&] { RunDirectory run("/proc/run"); });
  RunDirectory::check_writable(dir / "a/b/c");
  EXPECT_FALSE(fs::exists(dir / "a"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(RunDirectory, NoPermission) {
  const TempDir dir;
  fs::create_directory(dir / "theirs");
  fs::permissions(dir / "theirs", fs::perms::owner_read | fs::perms::owner_exec);
  fs::permissions(dir.path(), fs::perms::all);
  // Root may write anywhere; another user on the file system may not.
  const int before = ::geteuid() == 0 ? ::setfsuid(65534) : -1;
  const std::string probe = usage_error([&] { RunDirectory::check_writable(dir / "theirs/run"); });
  const std::string create = usage_error([&] { RunDirectory run(dir / "theirs/run"); });
  if (before >= 0) ::setfsuid(static_cast<uid_t>(before));
  expect_contains(probe, "Permission denied");
  expect_contains(create, "Permission denied");
}

}  // namespace
}  // namespace hearth
