#include "train/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace kda::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGPIPE};

std::atomic<int> g_stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler may only use lock-free atomics");

std::array<struct sigaction, kSignals.size()> g_previous{};

extern "C" void on_stop_signal(int signal_number) {
  int none = 0;
  // Every line after the first says SIGPIPE again: that is no impatience.
  if (!g_stop_signal.compare_exchange_strong(none, signal_number) && signal_number != SIGPIPE) {
    // The user has lost patience: no destructors, no flush, the last checkpoint stands.
    ::_exit(128 + signal_number);
  }
}

extern "C" void on_leave_signal(int signal_number) { ::_exit(128 + signal_number); }

}  // namespace

SignalScope::SignalScope(OnSignal on_signal) {
  struct sigaction action {};
  action.sa_handler = on_signal == OnSignal::kLeave ? on_leave_signal : on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write to the log must not fail half-way
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &g_previous[i]);
    // A signal that the parent ignores (nohup: SIGHUP) stays ignored.
    if (g_previous[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalScope::~SignalScope() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &g_previous[i], nullptr);
  }
}

int stop_signal() noexcept { return g_stop_signal.load(std::memory_order_relaxed); }

void request_stop(int signal_number) noexcept { g_stop_signal.store(signal_number); }

void clear_stop() noexcept { g_stop_signal.store(0); }

const char* signal_name(int signal_number) noexcept {
  switch (signal_number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE (the reader of the output has left)";
    default:
      return "a signal";
  }
}

void poll_stop() {
  if (const int signal_number = stop_signal(); signal_number != 0) throw Interrupted(signal_number);
}

}  // namespace kda::train
