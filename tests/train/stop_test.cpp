// Stop signals, each in a child process of its own: handlers are for the whole process.
#include "train/stop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace hearth {
namespace {

// Exit code of a child that runs `body`, or -signal where a signal killed it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int silent = ::open("/dev/null", O_WRONLY);
    ::dup2(silent, STDERR_FILENO);
    install_stop_handlers();
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Raises the signals; the request that is seen afterwards, or an exit code of 128 and more.
int after(std::initializer_list<int> signals) {
  return in_child([&] {
    for (const int signal : signals)
      ::raise(signal);
    return stop_signal();
  });
}

TEST(Stop, NothingWithoutASignal) {
  EXPECT_EQ(after({}), 0);
}

TEST(Stop, TheFirstSignalIsRemembered) {
  EXPECT_EQ(after({SIGINT}), SIGINT);
  EXPECT_EQ(after({SIGTERM}), SIGTERM);
  EXPECT_EQ(after({SIGUSR1}), SIGUSR1);
  EXPECT_EQ(after({SIGUSR1, SIGUSR1}), SIGUSR1);
}

TEST(Stop, ARequeueRequestCanBecomeAStop) {
  EXPECT_EQ(after({SIGUSR1, SIGTERM}), SIGTERM);
  EXPECT_EQ(after({SIGINT, SIGUSR1}), SIGINT);
}

TEST(Stop, ExitCodes) {
  EXPECT_EQ(static_cast<int>(exit_code_for(SIGINT)), 130);
  EXPECT_EQ(static_cast<int>(exit_code_for(SIGTERM)), 143);
  EXPECT_EQ(static_cast<int>(exit_code_for(SIGUSR1)), 75);
}

TEST(Stop, ASecondSignalEndsTheProcessAtOnce) {
  const auto second = [](int first, int signal) {
    return in_child([=] {
      ::raise(first);
      ::raise(signal);
      return 1;  // never reached
    });
  };
  EXPECT_EQ(second(SIGINT, SIGINT), 130);
  EXPECT_EQ(second(SIGTERM, SIGTERM), 143);
  EXPECT_EQ(second(SIGINT, SIGTERM), 143);
  EXPECT_EQ(in_child([] {
              for (const int signal : {SIGUSR1, SIGTERM, SIGTERM})
                ::raise(signal);
              return 1;
            }),
            143);
}

TEST(Stop, SlowSystemCallsGoOn) {
  EXPECT_EQ(in_child([] {
              int ends[2];
              if (::pipe(ends) != 0) return 2;
              const pid_t parent = ::getpid();
              if (::fork() == 0) {
                ::usleep(50'000);
                ::kill(parent, SIGTERM);
                ::usleep(50'000);
                ::_exit(::write(ends[1], "x", 1) == 1 ? 0 : 1);
              }
              char byte;
              return ::read(ends[0], &byte, 1) == 1 && stop_signal() == SIGTERM ? 0 : 3;
            }),
            0);
}

TEST(Stop, CanBeForgotten) {
  EXPECT_EQ(in_child([] {
              ::raise(SIGTERM);
              clear_stop_signal();
              return stop_signal();
            }),
            0);
}

}  // namespace
}  // namespace hearth
