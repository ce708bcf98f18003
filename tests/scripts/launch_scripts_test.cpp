// scripts/launch_ssh.sh with an ssh that runs the command here, and a hearth that is a shell script;
// scripts/launch_slurm.sbatch with an srun and a scontrol of the same kind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "base/files.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

constexpr const char* fake_ssh = R"(#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
[[ $1 == unreachable ]] && { echo "ssh: connect to host unreachable: No route" >&2; exit 255; }
export FAKE_HOST=${1#*@}
exec bash -c "$2"
)";

// Reports how it was started, then does what FAKE_hearth_HOST says; TERM and USR1 come over its input.
constexpr const char* fake_hearth = R"(#!/bin/bash
read -r token
echo "$FAKE_HOST: $* token=${#token} debug=$NCCL_DEBUG in $PWD"
echo "$token" >"$HEARTH_TEST_DIR/token.$FAKE_HOST"
case $FAKE_HOST in
  good) exit 0 ;;
  torn) echo "[3] shard 7 is torn" >&2; echo "launch: rank 3 (pid 1) ended with exit code 65" >&2; exit 65 ;;
esac
echo $$ >"$HEARTH_TEST_DIR/pid.$FAKE_HOST"
while read -r name; do
  echo "$FAKE_HOST got $name"
  [[ $name == USR1 ]] && exit 75
  [[ $name == TERM ]] && exit 143
  [[ $name == INT ]] && exit 130
done
echo "$FAKE_HOST: end of input" >"$HEARTH_TEST_DIR/eof.$FAKE_HOST"
exit 143
)";

struct Outcome {
  int code;
  std::string output;  // both streams
};

class LaunchScripts : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(dir_ / "bin");
    tool("ssh", fake_ssh);
    tool("hearth", fake_hearth);
    ::setenv("HEARTH_TEST_DIR", dir_.path().c_str(), 1);
    ::setenv("NCCL_DEBUG", "warn it", 1);
    path_ = std::getenv("PATH");
    ::setenv("PATH", ((dir_ / "bin").string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("HEARTH_TEST_DIR");
    ::unsetenv("NCCL_DEBUG");
    ::setenv("PATH", path_.c_str(), 1);
  }

  void tool(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / "bin" / name) << text;
    fs::permissions(dir_ / "bin" / name, fs::perms::owner_all);
  }
  std::string hostfile(const std::string& text) {
    std::ofstream(dir_ / "hosts") << text;
    return (dir_ / "hosts").string();
  }

  pid_t start(std::vector<std::string> argv) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int out = ::open((dir_ / "output").c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
      std::vector<char*> pointers;
      for (std::string& argument : argv)
        pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    return pid;
  }
  Outcome finish(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(dir_ / "output")};
  }
  std::vector<std::string> ssh_command(const std::string& hosts, const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv{"scripts/launch_ssh.sh", "--hearth", (dir_ / "bin" / "hearth").string(),
                                  "--grace", "1"};
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), {hostfile(hosts), "train", "my config.toml"});
    return argv;
  }
  Outcome ssh(const std::string& hosts, const std::vector<std::string>& more = {}) {
    return finish(start(ssh_command(hosts, more)));
  }
  bool wait_for(const std::string& file) {
    for (int tries = 0; tries < 500; ++tries) {
      if (fs::exists(dir_ / file) && fs::file_size(dir_ / file) > 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  TempDir dir_;
  std::string path_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(LaunchScripts, SshStartsEveryHostWithItsRanks) {
  const Outcome run = ssh("good slots=2\n# a comment\nme@good slots=3 # more\n", {"--port", "1234"});
  EXPECT_EQ(run.code, 0) << run.output;
  const std::string here = " debug=warn it in " + fs::current_path().string();
  EXPECT_TRUE(has(run.output,
                  "good: launch -n 2 --first-rank 0 --world-size 5 --master good:1234 --controlled train "
                  "my config.toml token=32" +
                      here))
      << run.output;
}

TEST_F(LaunchScripts, SshHostsShareOneToken) {
  const pid_t pid = start(ssh_command("a slots=1\nb slots=1\n"));
  ASSERT_TRUE(wait_for("pid.a") && wait_for("pid.b"));
  ::kill(pid, SIGTERM);
  const Outcome run = finish(pid);
  EXPECT_EQ(run.code, 143) << run.output;
  EXPECT_TRUE(has(run.output, "a got TERM") && has(run.output, "b got TERM")) << run.output;
  EXPECT_TRUE(has(run.output, "-n 1 --first-rank 1 --world-size 2 --master a:29500")) << run.output;
  EXPECT_EQ(read_file(dir_ / "token.a"), read_file(dir_ / "token.b"));
}

TEST_F(LaunchScripts, SshPassesOnTheRequestToStop) {
  const pid_t pid = start(ssh_command("a slots=1\nb slots=1\n"));
  ASSERT_TRUE(wait_for("pid.a") && wait_for("pid.b"));
  ::kill(pid, SIGUSR1);
  EXPECT_EQ(finish(pid).code, 75);
}

TEST_F(LaunchScripts, SshEndsTheOthersAfterAFailureAndNamesTheHost) {
  const Outcome run = ssh("a slots=1\ntorn slots=1\nb slots=1\n");
  EXPECT_EQ(run.code, 65) << run.output;
  EXPECT_TRUE(has(run.output, "a got TERM") && has(run.output, "b got TERM")) << run.output;
  const std::string last =
      "launch_ssh: torn failed first, exit code 65: launch: rank 3 (pid 1) ended with exit code 65\n";
  EXPECT_TRUE(run.output.ends_with(last)) << run.output;
}

TEST_F(LaunchScripts, SshItselfFailing) {
  const Outcome run = ssh("a slots=1\nunreachable slots=1\n");
  EXPECT_EQ(run.code, 71) << run.output;
  EXPECT_TRUE(has(run.output, "unreachable failed first, exit code 255: ssh: connect to host")) << run.output;
}

TEST_F(LaunchScripts, SshHostsNoticeThatTheScriptIsGone) {
  const pid_t pid = start(ssh_command("a slots=1\nb slots=1\n"));
  ASSERT_TRUE(wait_for("pid.a") && wait_for("pid.b"));
  ::kill(pid, SIGKILL);
  finish(pid);
  EXPECT_TRUE(wait_for("eof.a"));
  EXPECT_TRUE(wait_for("eof.b"));
}

TEST_F(LaunchScripts, SshDryRunPrintsAndStartsNothing) {
  const Outcome run = ssh("a slots=2\nb slots=1\n", {"--dry-run"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(has(run.output, "BatchMode=yes")) << run.output;
  EXPECT_TRUE(has(run.output, "--first-rank\\ 2\\ --world-size\\ 3")) << run.output;
  EXPECT_FALSE(fs::exists(dir_ / "token.a"));
}

TEST_F(LaunchScripts, SshHostFilesWithMistakes) {
  const std::string file = (dir_ / "hosts").string();
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"a slots=2\nb slot=1\n", file + ":2: found 'b slot=1', expected a host and its number of ranks"},
           {"a slots=0\n", file + ":1: found 'a slots=0'"},
           {"a slots=2 x\n", file + ":1: found"},
           {"a\n", file + ":1: found 'a'"},
           {"-oProxyCommand=x slots=1\n", file + ":1: '-oProxyCommand=x' is no host name"},
           {"a slots=1\na slots=1\n", file + ":2: a is there twice"},
           {"# nothing\n", "names no host"}}) {
    const Outcome run = ssh(text);
    EXPECT_EQ(run.code, 2) << text;
    EXPECT_TRUE(has(run.output, message)) << run.output;
  }
  EXPECT_EQ(finish(start({"scripts/launch_ssh.sh", "/no/such/file", "train", "x"})).code, 2);
  EXPECT_EQ(finish(start({"scripts/launch_ssh.sh", "--prot", "1"})).code, 2);
  EXPECT_EQ(finish(start({"scripts/launch_ssh.sh", "--port", "99999", "x", "train"})).code, 2);
}

TEST_F(LaunchScripts, SlurmRequeuesAStoppedRun) {
  tool("srun", "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\necho \"srun $*\"\nexit $FAKE_CODE\n");
  tool("scontrol", "#!/bin/bash\necho \"scontrol $*\"\n");
  ::setenv("SLURM_JOB_ID", "77", 1);
  for (const char* code : {"0", "75", "65"}) {
    ::setenv("FAKE_CODE", code, 1);
    const Outcome run =
        finish(start({"/bin/bash", "scripts/launch_slurm.sbatch", "train", "my config.toml"}));
    EXPECT_EQ(run.code, std::stoi(code));
    EXPECT_TRUE(has(run.output, "srun build/hearth train my config.toml")) << run.output;
    EXPECT_EQ(has(run.output, "scontrol requeue 77"), run.code == 75);
  }
  ::unsetenv("FAKE_CODE");
  ::unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(finish(start({"/bin/bash", "scripts/launch_slurm.sbatch"})).code, 2);
}

}  // namespace
}  // namespace hearth
