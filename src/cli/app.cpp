#include "cli/app.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cli/console.h"
#include "cli/help_formatter.h"
#include "io/config_reader.h"
#include "io/escape.h"
#include "kda/error.h"
#include "train/options.h"
#include "train/signals.h"

namespace kda::cli {
namespace {

std::function<int()>& pending_action() {
  static std::function<int()> action;
  return action;
}

/// The verb that parsing reached: "tokenizer train"; "" before any.
const CLI::App* deepest(const CLI::App& app, std::string& name) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += (name.empty() ? "" : " ") + at->get_name();
  }
  return at;
}

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kUsage;
    case ErrorCode::kUnsupported:
    case ErrorCode::kNonFinite:
      return kUnsupportedOrNan;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kCuda:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return kFailed;
  }
  return kFailed;
}

/// A list over several lines (the tensors that do not fit a model), in one.
std::string one_line(std::string text) {
  bool first = true;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, end - at, end == text.size() ? "" : first ? " " : "; ");
    first = false;
  }
  return text;
}

/// The first line: everything after it (a C++ backtrace of torch) helps nobody at a prompt.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string unknown_argument(const CLI::App& app) {
  std::string verb;
  const CLI::App* at = deepest(app, verb);
  std::vector<std::string> extras = app.remaining(true);
  std::string word = extras.empty() ? std::string() : extras.front();
  for (const std::string& extra : extras) {
    if (extra.starts_with("-")) {
      word = extra;
      break;
    }
  }
  word = word.substr(0, word.find('='));
  const bool is_flag = word.starts_with("-");
  std::vector<std::string> known;
  if (is_flag) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames())
        known.push_back("--" + name);
    }
  } else {
    for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(sub->get_name());
    }
  }
  std::string guess = nearest(word, known);
  if (guess.empty() && is_flag && (verb == "train" || verb == "sft")) {
    std::string key = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    std::replace(key.begin(), key.end(), '-', '_');
    guess = train::nearest_key(key, verb == "sft" ? train::Task::kSft : train::Task::kPretrain);
    if (!guess.empty()) guess = train::flag_of(guess);
  }
  std::string text = is_flag         ? "unknown option " + word
                     : known.empty() ? "unexpected argument '" + word + "'"
                                     : "unknown command '" + word + "'";
  if (!guess.empty()) text += "; did you mean " + guess + "?";
  return text + " (see kda" + (verb.empty() ? "" : " " + verb) + " --help)";
}

int report_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string verb;
  deepest(app, verb);
  std::string text = first_line(error.what());
  const bool needs_command = text == "A subcommand is required";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      (needs_command && !app.remaining(true).empty())) {
    text = unknown_argument(app);
  } else if (needs_command) {
    text = "a command is missing (see kda" + (verb.empty() ? "" : " " + verb) + " --help)";
  }
  print_error(verb, text);
  return kUsage;
}

/// Of the library an argument's name, of a program its flag: "--top-p: ..." for "top_p: ...".
std::string with_flag(const CLI::App& verb, const std::string& text) {
  const std::size_t end = text.find(':');
  if (end == std::string::npos || text.starts_with("-")) return text;
  const std::string flag = train::flag_of(text.substr(0, end));
  return verb.get_option_no_throw(flag) == nullptr ? text : flag + text.substr(end);
}

int run_action(const CLI::App& app) {
  std::string verb;
  const CLI::App* const at = deepest(app, verb);
  try {
    return pending_action()();
  } catch (const train::Interrupted& stop) {
    print_error(verb, std::string("stopped by ") + train::signal_name(stop.signal_number()));
    return kSignalBase + stop.signal_number();
  } catch (const Error& error) {
    print_error(verb, with_flag(*at, one_line(error.what())));
    return exit_code_of(error.code());
  } catch (const std::bad_alloc&) {
    print_error(verb, "out of memory");
    return kFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    print_error(verb, io::escaped(error.path1().string()) + ": " + error.code().message());
    return kFailed;
  } catch (const std::exception& error) {
    print_error(verb, first_line(error.what()));
    return kFailed;
  }
}

}  // namespace

CLI::App* add_verb(CLI::App& parent, const std::string& name, const std::string& description,
                   const std::string& examples) {
  CLI::App* verb = parent.add_subcommand(name, description);
  verb->formatter(std::make_shared<HelpFormatter>());
  if (!examples.empty()) verb->footer("Examples:\n" + examples);
  return verb;
}

void on_run(CLI::App* verb, std::function<int()> action) {
  verb->callback([action = std::move(action)] { pending_action() = action; });
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  return io::nearest_word(word, known);
}

int run_program(CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2) {
    std::fputs(app.help().c_str(), stdout);
    return kUsage;
  }
  // A file over the user's limit (ulimit -f) is an error of the write that can be cleaned up, like
  // a full disk; the signal would leave half a file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::string verb;
    const CLI::App* at = deepest(app, verb);
    // help() adds the name itself: it wants the words before it.
    const std::size_t last = verb.rfind(' ');
    const std::string parents =
        verb.empty() ? "" : "kda" + (last == std::string::npos ? "" : " " + verb.substr(0, last));
    std::fputs(at->help(parents).c_str(), stdout);
    return kDone;
  } catch (const CLI::Success& done) {
    std::fputs(done.what(), stdout);
    std::fputs("\n", stdout);
    return kDone;
  } catch (const CLI::ParseError& error) {
    return report_parse_error(app, error);
  } catch (const Error& error) {
    std::string verb;
    deepest(app, verb);
    print_error(verb, one_line(error.what()));
    return exit_code_of(error.code());
  }
  std::string verb;
  deepest(app, verb);
  const int code = run_action(app);
  // A full disk behind a redirected stdout must not pass as success.
  if (code == kSignalBase + SIGPIPE) {
    std::signal(SIGPIPE, SIG_IGN);  // what the buffer still holds goes nowhere
    return code;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    print_error(verb, "cannot write to standard output");
    return code == kDone ? kFailed : code;
  }
  return code;
}

}  // namespace kda::cli
