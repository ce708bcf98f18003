#include "parallel/child.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "comm/failure.h"

extern char** environ;

namespace hearth {
namespace {

constexpr size_t longest_line = 64 << 10;  // longer ones are broken

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) merged.push_back(text);
  }
  for (const auto& [name, value] : added)
    merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings)
    out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec; everything that allocates has been done before.
[[noreturn]] void become(char* const* argv, char* const* environment, const cpu_set_t* cores, int output,
                         int errors, int inherited, int failure, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(128 + SIGTERM);  // it died before we asked
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  if (inherited >= 0) ::fcntl(inherited, F_SETFD, 0);
  if (cores) ::sched_setaffinity(0, sizeof *cores, cores);
  ::execvpe(argv[0], argv, environment);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(failure, &reason, sizeof reason);
  ::_exit(127);
}

}  // namespace

Child::Child(int rank, const ChildOptions& options) : rank_(rank) {
  int output[2], errors[2], failure[2];
  check(
      ::pipe2(output, O_CLOEXEC) == 0 && ::pipe2(errors, O_CLOEXEC) == 0 && ::pipe2(failure, O_CLOEXEC) == 0,
      "no pipes: ", std::strerror(errno));
  const Descriptor to_output(output[1]), to_errors(errors[1]), from_failure(failure[0]);
  Descriptor to_failure(failure[1]);
  streams_[0] = {Descriptor(output[0]), STDOUT_FILENO, "", ""};
  streams_[1] = {Descriptor(errors[0]), STDERR_FILENO, "", ""};
  for (const Stream& stream : streams_)
    ::fcntl(stream.from.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments = options.argv, environment = merged_environment(options.environment);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core : options.cores)
    CPU_SET(static_cast<size_t>(core), &cores);
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(argv.data(), envp.data(), options.cores.empty() ? nullptr : &cores, output[1], errors[1],
           options.inherited, failure[1], self);
  if (pid_ < 0) throw Error(ExitCode::peer, text("cannot start rank ", rank, ": ", std::strerror(errno)));
  ::setpgid(pid_, pid_);
  to_failure.close();
  int reason = 0;
  if (::read(from_failure.get(), &reason, sizeof reason) == sizeof reason) {
    ::waitpid(pid_, nullptr, 0);
    throw Error(ExitCode::peer, text("cannot run '", options.argv[0], "': ", std::strerror(reason)));
  }
}

void Child::signal(int number) const {
  if (running_) ::kill(-pid_, number);
}

// The group is swept before the leader is reaped: until then its number cannot be given to anybody else.
bool Child::reap() {
  siginfo_t info{};
  if (!running_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_)
    return false;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
  running_ = false;
  exit_code_ = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return true;
}

bool Child::killed() const {
  return !running_ && WIFSIGNALED(status_);
}

std::string Child::describe_end() const {
  const std::string who = describe(rank_, Member{host_name(), pid_, ""});
  if (killed())
    return text(who, " was killed by signal ", WTERMSIG(status_), " (", ::strsignal(WTERMSIG(status_)), ")");
  return text(who, " ended with exit code ", exit_code_);
}

void Child::copy_output() {
  for (Stream& stream : streams_)
    copy(stream);
}

void Child::copy(Stream& stream) {
  char buffer[16384];
  while (stream.from) {
    const ssize_t n = ::read(stream.from.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      stream.from.close();
      print_lines(stream, true);
      return;
    }
    stream.pending.append(buffer, static_cast<size_t>(n));
    print_lines(stream, stream.pending.size() > longest_line);
  }
}

// One write for each line: lines of different ranks never mix.
void Child::print_lines(Stream& stream, bool all) {
  while (!stream.pending.empty()) {
    const size_t end = stream.pending.find('\n');
    if (end == std::string::npos && !all) return;
    const std::string line = stream.pending.substr(0, end);
    stream.pending.erase(0, end == std::string::npos ? end : end + 1);
    if (!line.empty()) stream.last_line = line;
    const std::string out = text("[", rank_, "] ", line, "\n");
    for (size_t done = 0; done < out.size();) {
      const ssize_t n = ::write(stream.to, out.data() + done, out.size() - done);
      if (n < 0 && errno != EINTR) break;  // our own reader is gone; the ranks go on
      if (n > 0) done += static_cast<size_t>(n);
    }
  }
}

}  // namespace hearth
