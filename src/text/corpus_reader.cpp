#include "text/corpus_reader.h"

#include <algorithm>
#include <utility>

#include "io/escape.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/utf8.h"
#include "kda/error.h"

namespace kda::text {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

/// State of one `read_corpus` call.
class Reading {
 public:
  using Sink = std::function<bool(const CorpusDocument&)>;

  Reading(const CorpusOptions& options, const Sink& sink) : options_(options), sink_(sink) {}

  bool stopped() const { return stopped_; }
  const CorpusStats& stats() const { return stats_; }

  void read_text(const std::filesystem::path& path) {
    file_ = path.string();
    std::string document;
    std::uint64_t first_line = 0;
    const auto flush = [&] {
      if (!document.empty()) {
        document.pop_back();  // the last line's newline
        give(document, first_line);
        document.clear();
      }
    };
    for_each_line(path, [&](std::uint64_t number, std::string_view line) {
      if (is_blank(line)) {
        flush();
        return;
      }
      if (document.empty()) first_line = number;
      document += line;
      document += '\n';
      check_size(document.size(), first_line);
    });
    if (!stopped_) flush();
  }

  void read_jsonl(const std::filesystem::path& path) {
    file_ = path.string();
    for_each_line(path, [&](std::uint64_t number, std::string_view line) {
      if (is_blank(line)) return;
      check_size(line.size(), number);
      const auto json =
          io::parse_sorted_json(line, place(number), {.max_depth = 32, .max_bytes = line.size()});
      if (!json.is_object()) fail(number, "expected a JSON object");
      std::string document;
      if (const auto title = json.find("title"); title != json.end() && !title->is_null()) {
        if (!title->is_string()) fail(number, "\"title\" is not a string");
        document = title->get<std::string>() + "\n\n";
      }
      const auto text = json.find("text");
      if (text == json.end()) fail(number, "no \"text\"");
      if (!text->is_string()) fail(number, "\"text\" is not a string");
      document += text->get_ref<const std::string&>();
      if (document.find_first_not_of(" \t\r\n\f\v") == std::string::npos) {
        ++stats_.skipped_empty;
        return;
      }
      give(document, number);
    });
  }

 private:
  std::string place(std::uint64_t line) const {
    return io::escaped(file_) + " line " + std::to_string(line);
  }
  [[noreturn]] void fail(std::uint64_t line, const std::string& reason) const {
    throw Error(ErrorCode::kIo, place(line) + ": " + reason);
  }

  void check_size(std::uint64_t bytes, std::uint64_t line) const {
    if (bytes > options_.max_document_bytes) {
      fail(line, "a document of more than " + std::to_string(options_.max_document_bytes) +
                     " bytes begins here; documents are separated by empty lines in .txt and by "
                     "newlines in .jsonl");
    }
  }

  void give(std::string_view text, std::uint64_t line) {
    ++stats_.documents;
    stats_.bytes += text.size();
    stopped_ = !sink_({text, file_, line}) ||
               (options_.max_documents > 0 && stats_.documents == options_.max_documents);
  }

  /// Calls `visit(number, line)` until the sink stops. Lines are valid UTF-8, without LF or CRLF.
  template <class Visit>
  void for_each_line(const std::filesystem::path& path, const Visit& visit) {
    const io::MappedFile mapping(path);
    std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()),
                          mapping.bytes().size());
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    std::string repaired;
    for (std::uint64_t number = 1; !text.empty() && !stopped_; ++number) {
      const auto end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (const auto bad = io::find_invalid_utf8(line); bad != line.size()) {
        if (options_.invalid_utf8 == InvalidUtf8::kError) {
          fail(number, "byte " + std::to_string(bad + 1) + " is not UTF-8");
        }
        repaired = io::replace_invalid_utf8(line);
        // Each invalid byte grew into the three bytes of U+FFFD.
        stats_.replaced_bytes += (repaired.size() - line.size()) / 2;
        line = repaired;
      }
      visit(number, line);
    }
  }

  const CorpusOptions& options_;
  const Sink& sink_;
  CorpusStats stats_;
  std::string file_;
  bool stopped_ = false;
};

}  // namespace

CorpusStats read_corpus(const std::vector<std::filesystem::path>& files,
                        const CorpusOptions& options,
                        const std::function<bool(const CorpusDocument&)>& sink) {
  for (const auto& path : files) {
    if (path.extension() != ".txt" && path.extension() != ".jsonl") {
      throw Error(ErrorCode::kInvalidArgument,
                  io::escaped(path.string()) + ": expected a .txt or .jsonl file");
    }
  }
  Reading reading(options, sink);
  for (const auto& path : files) {
    if (reading.stopped()) break;
    if (path.extension() == ".txt") {
      reading.read_text(path);
    } else {
      reading.read_jsonl(path);
    }
  }
  return reading.stats();
}

}  // namespace kda::text
