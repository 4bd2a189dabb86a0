/// What may follow on a command line of the program, read from the parser's own tree of verbs and
/// options, and scripts that tell shells about it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kda::cli {

struct CompletionOption {
  std::vector<std::string> names;  ///< as typed: "-h", "--help"
  std::string about;               ///< one short line
  bool takes_value = false;
  bool takes_path = false;           ///< the value may be a file or a folder
  std::vector<std::string> choices;  ///< the words that the value may be, where there are few
};

struct CompletionVerb {
  std::string path;  ///< "" the program, "/train", "/tokenizer/encode"
  std::string about;
  std::vector<std::string> verbs;  ///< last words of the verbs below this one
  std::vector<CompletionOption> options;
};

/// Every verb of `app` that its help shows, and those of the Python tools; parents before children.
std::vector<CompletionVerb> completion_verbs(const CLI::App& app);

/// A script for `shell`: bash, zsh or fish. Throws kInvalidArgument naming them for another.
std::string completion_script(const std::vector<CompletionVerb>& verbs, const std::string& shell);

}  // namespace kda::cli
