/// What the program shows: colours on a terminal only, status lines that stay readable in a file.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "train/report.h"

namespace kda::cli {

enum class Style { kPlain, kBold, kDim, kGreen, kYellow, kRed };

/// `text` in a style when `stream_fd` (1 or 2) is a terminal and NO_COLOR is not set.
std::string styled(Style style, std::string_view text, int stream_fd = 1);

/// "kda <verb>: error: <text>" on standard error.
void print_error(const std::string& verb, const std::string& text);
/// "kda <verb>: warning: <text>" on standard error.
void print_warning(const std::string& verb, const std::string& text);

/// Throws kIo when standard output did not take what was printed (a full disk behind it): before
/// anything is said about the text. A reader that left is the signal it is (Interrupted).
void flush_output();

/// Shows a training run. On a terminal every step replaces one status line; into a file go the
/// lines that --log-every asks for, and progress at most every ten seconds.
class ConsoleReporter : public train::Reporter {
 public:
  explicit ConsoleReporter(std::string verb);
  ~ConsoleReporter() override;

  void heading(std::string_view text) override;
  void note(std::string_view text) override;
  void warn(std::string_view text) override;
  void progress(const train::ProgressRecord& record) override;
  void step(const train::StepRecord& record, bool log) override;
  void evaluation(const train::EvalRecord& record) override;
  void sample(const train::SampleRecord& record) override;
  void saved(const train::SaveRecord& record) override;

 private:
  void status(const std::string& line);
  void clear_status();
  void line(const std::string& text);

  using Clock = std::chrono::steady_clock;
  std::string verb_;
  bool terminal_;
  bool status_shown_ = false;
  Clock::time_point last_progress_{};
};

}  // namespace kda::cli
