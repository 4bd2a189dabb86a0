#include "train/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "train/fixture.h"

namespace kda::train {
namespace {

TEST(Signals, FirstOneSetsTheFlag) {
  testing::ScratchFolder scratch;
  {
    const SignalScope scope;
    EXPECT_EQ(stop_signal(), 0);
    EXPECT_NO_THROW(poll_stop());
    ::raise(SIGTERM);
    EXPECT_EQ(stop_signal(), SIGTERM);
    try {
      poll_stop();
      FAIL();
    } catch (const Interrupted& stop) {
      EXPECT_EQ(stop.signal_number(), SIGTERM);
    }
  }
  clear_stop();
  EXPECT_EQ(stop_signal(), 0);
}

TEST(Signals, SecondOneLeavesAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    clear_stop();
    const SignalScope scope;
    ::raise(SIGINT);
    ::raise(SIGINT);
    ::_exit(77);  // not reached
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(Signals, ALostReaderStopsTheRunHoweverOftenItIsSaid) {
  const pid_t child = ::fork();
  if (child == 0) {
    clear_stop();
    const SignalScope scope;
    ::raise(SIGPIPE);
    ::raise(SIGPIPE);
    ::_exit(stop_signal() == SIGPIPE ? 77 : 78);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 77);
}

TEST(Signals, IgnoredHangupStaysIgnored) {
  testing::ScratchFolder scratch;
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before {};
  ::sigaction(SIGHUP, &ignore, &before);
  {
    const SignalScope scope;
    ::raise(SIGHUP);
    EXPECT_EQ(stop_signal(), 0);
  }
  ::sigaction(SIGHUP, &before, nullptr);
}

}  // namespace
}  // namespace kda::train
