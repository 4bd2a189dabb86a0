#include "cli/console.h"

#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "io/escape.h"
#include "kda/error.h"
#include "train/signals.h"

namespace kda::cli {
namespace {

constexpr std::chrono::seconds kFileProgressInterval{10};
constexpr std::chrono::milliseconds kTerminalProgressInterval{100};

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

bool colours(int fd) { return is_terminal(fd) && std::getenv("NO_COLOR") == nullptr; }

std::size_t terminal_width() {
  struct winsize size {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string styled(Style style, std::string_view text, int stream_fd) {
  const char* code = nullptr;
  switch (style) {
    case Style::kPlain:
      break;
    case Style::kBold:
      code = "1";
      break;
    case Style::kDim:
      code = "2";
      break;
    case Style::kGreen:
      code = "32";
      break;
    case Style::kYellow:
      code = "33";
      break;
    case Style::kRed:
      code = "31";
      break;
  }
  if (code == nullptr || !colours(stream_fd)) return std::string(text);
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

void print_error(const std::string& verb, const std::string& text) {
  std::fflush(stdout);
  const std::string who = verb.empty() ? "kda" : "kda " + verb;
  std::fprintf(stderr, "%s: %s %s\n", who.c_str(), styled(Style::kRed, "error:", 2).c_str(),
               text.c_str());
}

void print_warning(const std::string& verb, const std::string& text) {
  std::fflush(stdout);
  const std::string who = verb.empty() ? "kda" : "kda " + verb;
  std::fprintf(stderr, "%s: %s %s\n", who.c_str(), styled(Style::kYellow, "warning:", 2).c_str(),
               text.c_str());
}

void flush_output() {
  const bool flushed = std::fflush(stdout) == 0;
  const std::string reason = flushed ? "" : std::string(": ") + std::strerror(errno);
  if (flushed && std::ferror(stdout) == 0) return;
  // Said once: the end of the program looks at the stream too.
  ::__fpurge(stdout);
  std::clearerr(stdout);
  train::poll_stop();
  throw Error(ErrorCode::kIo, "cannot write to standard output" + reason);
}

ConsoleReporter::ConsoleReporter(std::string verb)
    : verb_(std::move(verb)), terminal_(is_terminal(STDOUT_FILENO)) {}

ConsoleReporter::~ConsoleReporter() { clear_status(); }

void ConsoleReporter::clear_status() {
  if (!status_shown_) return;
  std::fputs("\r\x1b[K", stdout);
  std::fflush(stdout);
  status_shown_ = false;
}

void ConsoleReporter::status(const std::string& text) {
  // A line that wraps could not be replaced.
  const std::string shown = text.substr(0, terminal_width() - 1);
  std::printf("\r\x1b[K%s", styled(Style::kDim, shown).c_str());
  std::fflush(stdout);
  status_shown_ = true;
}

void ConsoleReporter::line(const std::string& text) {
  clear_status();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);  // whoever follows the file sees the line now
}

void ConsoleReporter::heading(std::string_view text) {
  line(styled(Style::kBold, "== " + std::string(text)));
}

void ConsoleReporter::note(std::string_view text) {
  while (!text.empty() && text.back() == '\n')
    text.remove_suffix(1);
  line(std::string(text));
}

void ConsoleReporter::warn(std::string_view text) {
  clear_status();
  print_warning(verb_, std::string(text));
}

void ConsoleReporter::progress(const train::ProgressRecord& record) {
  const Clock::time_point now = Clock::now();
  const bool due = now - last_progress_ >= (terminal_ ? Clock::duration(kTerminalProgressInterval)
                                                      : Clock::duration(kFileProgressInterval));
  // Short phases in a file leave no line at all.
  const bool first = last_progress_ == Clock::time_point{};
  if (first && !terminal_) last_progress_ = now;
  if (!due || (first && !terminal_)) return;
  last_progress_ = now;
  if (terminal_) {
    status(console_line(record));
  } else {
    line(console_line(record));
  }
}

void ConsoleReporter::step(const train::StepRecord& record, bool log) {
  if (log) {
    const std::string text = console_line(record);
    line(record.skipped ? styled(Style::kYellow, text) : text);
  } else if (terminal_) {
    status(console_line(record));
  }
}

void ConsoleReporter::evaluation(const train::EvalRecord& record) {
  line(styled(record.best ? Style::kGreen : Style::kPlain, console_line(record)));
}

void ConsoleReporter::sample(const train::SampleRecord& record) {
  // Escaped: a model may produce newlines and control characters, the log stays one line.
  constexpr std::size_t kShown = 400;
  line(styled(Style::kDim, "sample " + io::escaped(record.prompt, kShown) + " -> " +
                               io::escaped(record.text, kShown)));
}

void ConsoleReporter::saved(const train::SaveRecord& record) {
  line(styled(Style::kDim, console_line(record)));
}

}  // namespace kda::cli
