/// Sentences with references: the evaluation sets of a corpus folder, or two files of the user's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/language.h"

namespace kda::eval {

/// What one translation run works on. All vectors are equally long, but `strata` may be empty.
struct EvalTask {
  std::string set;  ///< "test", "indomain", ...; the source file's name for the user's own
  text::Direction direction = text::Direction::kEnToZh;
  std::vector<std::string> sources;
  std::vector<std::string> references;
  std::vector<std::string> strata;  ///< group of each sentence

  /// "test.en2zh"
  std::string name() const;
};

/// Lines of a UTF-8 text file without their ends (LF or CRLF); a last line without LF counts, a
/// byte order mark goes. Error(kIo) naming file, line and byte for what is not UTF-8.
std::vector<std::string> read_lines(const std::filesystem::path& path);

/// The folder with `<set>.en`, `<set>.zh`, `<set>.meta`: `data` itself or `data`/eval. Error(kIo)
/// when neither has any.
std::filesystem::path find_eval_folder(const std::filesystem::path& data);
/// Names of the sets in such a folder, in order.
std::vector<std::string> set_names(const std::filesystem::path& folder);
/// Those that evaluation takes when none is named: "test" and "indomain" as far as they are there,
/// else all but "dev".
std::vector<std::string> default_sets(const std::vector<std::string>& names);

/// Reads a set and checks each pair against its frozen id (sha256 of "English<TAB>Chinese"): a set
/// that was edited does not compare with anybody's scores. Error(kIo) naming the file and line, or
/// the counts that differ.
EvalTask load_eval_set(const std::filesystem::path& folder, const std::string& set,
                       text::Direction direction);

/// One sentence when the corpus was built with fewer than all pairs of a frozen set
/// (`--allow-missing-eval`, or up to 1 % gone), from the MANIFEST.json beside `folder`; else "".
std::string missing_pairs_note(const std::filesystem::path& folder, const std::string& set);

/// The user's own files, one sentence per line. Error(kInvalidArgument) naming both counts when
/// they differ, and for files without a line.
EvalTask load_line_files(const std::filesystem::path& source,
                         const std::filesystem::path& reference, text::Language target);

/// At most `limit` sentences, evenly spaced over the set, hence over its strata; 0: all.
EvalTask evenly_limited(const EvalTask& task, std::size_t limit);

}  // namespace kda::eval
