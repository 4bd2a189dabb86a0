#include "cli/generate_modes.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/standard_input.h"
#include "eval/translate.h"
#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/json.h"
#include "kda/error.h"
#include "model/generate.h"
#include "text/prompts.h"
#include "train/named_errors.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kGenerateVerb = "generate";

void put_text(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

bool put_token(std::string_view text) {
  put_text(text);
  if (!text.empty()) flush_output();
  return train::stop_signal() == 0;
}

/// Numbers of one continuation, on standard error.
class Statistics {
 public:
  void print_line(const eval::Continuation& made, const GenerateOptions& options,
                  const LoadedModel& loaded) const {
    if (options.quiet) return;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::string text =
        "[" + std::to_string(made.prompt_tokens) + " prompt + " + std::to_string(made.new_tokens) +
        " new tokens, " +
        train::short_count(static_cast<double>(made.new_tokens) / std::max(seconds, 1e-9)) +
        " tok/s on " + loaded.model.device().str() + ", seed " +
        std::to_string(options.how.sampling.seed) + ", finish=" + model::name_of(made.reason) + "]";
    std::fprintf(stderr, "%s\n", styled(Style::kDim, text, 2).c_str());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// How a prompt becomes what the model reads, and where an answer ends.
eval::ContinueOptions continue_options(const GenerateOptions& options,
                                       const text::Tokenizer& tokenizer) {
  eval::ContinueOptions how = options.how;
  if (options.target) how.stop_ids = text::answer_stop_ids(tokenizer);
  return how;
}

std::string full_prompt(const GenerateOptions& options, const std::string& prompt) {
  return options.target ? text::translation_prompt(*options.target, prompt) : prompt;
}

/// One translation on a line of its own. It is streamed, except for white space at its ends.
void translate_line(const LoadedModel& loaded, const GenerateOptions& options,
                    const std::string& line, std::uint64_t row) {
  const Statistics statistics;
  eval::TextSession session(loaded.model, loaded.tokenizer);
  session.append(full_prompt(options, line));
  eval::ContinueOptions how = continue_options(options, loaded.tokenizer);
  how.row = row;
  std::string held;
  bool begun = false;
  const eval::Continuation made = session.continue_text(how, [&](std::string_view text) {
    held += text;
    const auto last = held.find_last_not_of(" \t");
    if (last == std::string::npos) return train::stop_signal() == 0;
    const std::size_t first = begun ? 0 : held.find_first_not_of(" \t");
    begun = true;
    put_text(std::string_view(held).substr(first, last + 1 - first));
    flush_output();
    held.erase(0, last + 1);
    return train::stop_signal() == 0;
  });
  put_text("\n");
  flush_output();
  statistics.print_line(made, options, loaded);
}

constexpr const char* kHelp =
    "/reset       forget the text and begin a new one\n"
    "/text        show the whole text so far\n"
    "/save DIR    save the session there (kda generate --session DIR goes on with it)\n"
    "/quit        leave; so does Ctrl-D. Ctrl-C stops an answer, twice leaves\n"
    "An empty line goes on without adding anything.\n";

/// Whether the line was a command; `leave` when it was the last one.
bool run_command(const std::string& line, const LoadedModel& loaded, eval::TextSession& session,
                 bool& leave) {
  if (!line.starts_with("/")) return false;
  const std::size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (word == "/quit" || word == "/exit") {
    leave = true;
  } else if (word == "/reset") {
    session = eval::TextSession(loaded.model, loaded.tokenizer);
  } else if (word == "/text") {
    put_text(session.text() + "\n");
  } else if (word == "/save" && !rest.empty()) {
    session.save(rest);
    std::fprintf(stderr, "saved %s\n", rest.c_str());
  } else {
    std::fputs(word == "/help" ? kHelp : "unknown command; /help lists them\n", stderr);
  }
  return true;
}

void go_on(const LoadedModel& loaded, const GenerateOptions& options, const std::string& line,
           eval::TextSession& session) {
  const Statistics statistics;
  session.append(line);
  const eval::Continuation made =
      session.continue_text(continue_options(options, loaded.tokenizer), put_token);
  put_text("\n");
  flush_output();
  statistics.print_line(made, options, loaded);
}

/// One row of a JSONL file of prompts.
struct PromptRow {
  io::Json object;
  std::string prompt;
};

PromptRow parse_row(const std::string& line, const std::string& where, bool translate) {
  PromptRow row{io::parse_json(line, where), {}};
  if (!row.object.is_object()) {
    throw Error(ErrorCode::kIo, where + ": expected an object with \"prompt\"");
  }
  // SFT rows can be given as they are.
  for (const char* key : {"prompt", "src"}) {
    const auto found = row.object.find(key);
    if (found == row.object.end() || (!translate && std::string(key) == "src")) continue;
    if (!found->is_string()) {
      throw Error(ErrorCode::kIo, where + ": \"" + key + "\": expected a string, got " +
                                      std::string(found->type_name()));
    }
    row.prompt = found->get<std::string>();
    return row;
  }
  throw Error(ErrorCode::kIo, where + ": expected \"prompt\"" +
                                  std::string(translate ? " or \"src\"" : "") + ", got " +
                                  io::escaped(line));
}

eval::TextSession load_session(const GenerateOptions& options, const LoadedModel& loaded) {
  return train::named("--session", [&] {
    return eval::TextSession::load(options.session, loaded.model, loaded.tokenizer);
  });
}

/// Where the rows go: a file that is complete or absent, or standard output row by row.
class RowSink {
 public:
  explicit RowSink(const std::string& path) {
    if (!path.empty() && path != "-") file_ = std::make_unique<io::AtomicFile>(path);
  }
  void write(const io::Json& row) {
    const std::string line = row.dump() + "\n";
    if (file_) {
      file_->write(line);
    } else {
      put_text(line);
    }
  }
  void commit() {
    if (file_) file_->commit();
    flush_output();
  }

 private:
  std::unique_ptr<io::AtomicFile> file_;
};

}  // namespace

int generate_once(const GenerateOptions& options, const std::string& prompt) {
  const LoadedModel loaded = load_for_use(options.load, kGenerateVerb);
  for (std::int64_t i = 0; i < options.samples; ++i) {
    if (options.target) {
      translate_line(loaded, options, prompt, static_cast<std::uint64_t>(i));
      train::poll_stop();
      continue;
    }
    const Statistics statistics;
    const bool resumes = !options.session.empty() && fs::exists(options.session);
    eval::TextSession session =
        resumes ? load_session(options, loaded) : eval::TextSession(loaded.model, loaded.tokenizer);
    eval::ContinueOptions how = options.how;
    how.row = static_cast<std::uint64_t>(i);
    put_text(prompt);
    session.append(prompt);
    const eval::Continuation made = session.continue_text(how, put_token);
    put_text("\n");
    flush_output();
    statistics.print_line(made, options, loaded);
    if (!options.session.empty()) session.save(options.session);
    train::poll_stop();
  }
  return kDone;
}

int generate_interactively(const GenerateOptions& options) {
  const LoadedModel loaded = load_for_use(options.load, kGenerateVerb);
  const bool resumes = !options.session.empty() && fs::exists(options.session);
  eval::TextSession session =
      resumes ? load_session(options, loaded) : eval::TextSession(loaded.model, loaded.tokenizer);
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) std::fputs("Type a text and Enter; /help lists commands.\n", stderr);
  std::string line;
  bool leave = false;
  std::uint64_t translations = 0;
  while (!leave) {
    if (terminal) std::fputs(styled(Style::kBold, "> ", 2).c_str(), stderr);
    if (!std::getline(std::cin, line)) {
      check_standard_input();
      break;
    }
    try {
      if (run_command(line, loaded, session, leave)) continue;
      if (options.target) {
        if (!line.empty()) translate_line(loaded, options, line, translations++);
      } else {
        go_on(loaded, options, line, session);
      }
    } catch (const Error& error) {
      // A line that cannot be used is no reason to lose the text; a model that is broken is.
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kIo) throw;
      print_error(kGenerateVerb, error.what());
    }
    if (!terminal) train::poll_stop();
    train::clear_stop();  // Ctrl-C has ended the answer
  }
  if (!options.session.empty()) session.save(options.session);
  return kDone;
}

int generate_jsonl(const GenerateOptions& options) {
  const LoadedModel loaded = load_for_use(options.load, kGenerateVerb);
  std::ifstream file;
  const bool from_stdin = options.input == "-";
  if (!from_stdin) {
    file.open(options.input, std::ios::binary);
    if (!file) {
      train::named("--input", [&] { io::throw_errno("cannot open", options.input); });
    }
  }
  std::istream& in = from_stdin ? std::cin : file;
  const std::string name = from_stdin ? "standard input" : options.input;
  RowSink sink(options.output);
  eval::ContinueOptions how = continue_options(options, loaded.tokenizer);
  std::vector<PromptRow> batch;
  std::uint64_t done = 0;
  const auto finish_batch = [&] {
    std::vector<std::string> prompts;
    for (const PromptRow& row : batch)
      prompts.push_back(full_prompt(options, row.prompt));
    how.row = done;  // the draws of a row depend on its number, not on the batch
    const std::vector<eval::Continuation> made =
        eval::continue_texts(loaded.model, loaded.tokenizer, prompts, how, train::poll_stop);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      io::Json& object = batch[i].object;
      object["text"] = options.target ? text::answer_text(made[i].text) : made[i].text;
      object["finish"] = model::name_of(made[i].reason);
      object["prompt_tokens"] = made[i].prompt_tokens;
      object["new_tokens"] = made[i].new_tokens;
      sink.write(object);
    }
    done += batch.size();
    batch.clear();
  };
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    batch.push_back(
        parse_row(line, name + ":" + std::to_string(number), options.target.has_value()));
    if (static_cast<std::int64_t>(batch.size()) == options.batch) finish_batch();
  }
  if (from_stdin) check_standard_input();
  if (in.bad()) train::named("--input", [&] { io::throw_errno("cannot read", options.input); });
  if (!batch.empty()) finish_batch();
  sink.commit();
  if (!options.quiet) {
    std::fprintf(stderr, "%s\n",
                 styled(Style::kDim, "[" + std::to_string(done) + " prompts]", 2).c_str());
  }
  return kDone;
}

}  // namespace kda::cli
