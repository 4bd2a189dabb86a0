/// Reads documents from text and JSONL files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kda::text {

enum class InvalidUtf8 : std::uint8_t {
  kError,    ///< Error(kIo) naming file, line and byte
  kReplace,  ///< every invalid byte becomes U+FFFD, counted
};

struct CorpusOptions {
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kError;
  std::uint64_t max_documents = 0;               ///< 0: all
  std::uint64_t max_document_bytes = 64u << 20;  ///< longer ones are an error: a missing separator
};

struct CorpusStats {
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;           ///< of the documents' text
  std::uint64_t skipped_empty = 0;   ///< documents with nothing but white space
  std::uint64_t replaced_bytes = 0;  ///< see InvalidUtf8::kReplace
};

/// One document on its way to the caller; `text` lives during the call only.
struct CorpusDocument {
  std::string_view text;
  std::string_view file;
  std::uint64_t line = 0;  ///< 1-based line where it begins
};

/// Calls `sink` for each document of `files` in order; a false return stops early.
/// `.txt`: documents are separated by empty lines (lines of white space count as empty); inner
/// newlines are kept, CRLF becomes LF, a UTF-8 byte order mark is dropped.
/// `.jsonl`: one object per line with "text" or "title" and "text" (joined by an empty line);
/// other keys are ignored, a missing or non-string "text" is an error naming file and line.
/// Errors: Error(kIo) for files, Error(kInvalidArgument) for another extension.
CorpusStats read_corpus(const std::vector<std::filesystem::path>& files,
                        const CorpusOptions& options,
                        const std::function<bool(const CorpusDocument&)>& sink);

}  // namespace kda::text
