/// Stop requests from the outside: SIGTERM, SIGINT, SIGHUP, and SIGPIPE, which says that nobody
/// reads the output any more (`kda train | head`).
///
/// The first signal only sets a flag that every long loop polls (training, evaluation, tokenizing,
/// sampling), so that the program can save and leave with 128 + signal. A second one leaves at
/// once.
#pragma once

#include <exception>

namespace kda::train {

enum class OnSignal {
  kSetFlag,  ///< the first sets the flag, the second leaves at once
  kLeave,    ///< the first leaves at once: for work that cannot be asked to stop and leaves no mess
};

/// Installs the handlers for the life of the object and restores the previous ones after it.
/// One at a time per process.
class SignalScope {
 public:
  explicit SignalScope(OnSignal on_signal = OnSignal::kSetFlag);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
};

/// The first signal received, 0 when none. Safe from any thread; costs one atomic load.
int stop_signal() noexcept;

/// Sets the flag as a signal would; for callers that stop a run from inside the process.
void request_stop(int signal_number) noexcept;

/// Clears the flag.
void clear_stop() noexcept;

/// "SIGTERM", "SIGINT", "SIGHUP", and SIGPIPE with what it means.
const char* signal_name(int signal_number) noexcept;

/// Thrown by poll points that have nothing to save themselves; carried up to the one that has.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal_number) : signal_number_(signal_number) {}
  int signal_number() const noexcept { return signal_number_; }
  const char* what() const noexcept override { return "interrupted by a signal"; }

 private:
  int signal_number_;
};

/// Throws Interrupted when a stop was requested.
void poll_stop();

}  // namespace kda::train
