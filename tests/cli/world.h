/// A small world made with the program itself: corpus, tokenizer, a trained run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

namespace kda::cli::testing {

/// Removed at the end of the process.
const std::filesystem::path& scratch();

/// scratch()/name, emptied.
std::filesystem::path fresh_folder(const std::string& name);

void write_text(const std::filesystem::path& path, const std::string& text);

const std::filesystem::path& corpus();          ///< pretrain.zh.txt, pretrain.en.txt, heldout.txt
const std::filesystem::path& tokenizer_file();  ///< trained by `kda tokenizer train`
const std::filesystem::path& trained_run();  ///< 30 steps of the tiny model; copy before changing

/// The arguments of a short run of the tiny model.
std::vector<std::string> train_arguments(const std::filesystem::path& out, int steps,
                                         const std::vector<std::string>& more = {});

/// Expects one line on standard error that begins with "kda VERB: error: " and holds all `parts`.
void expect_error(const ProgramResult& result, int exit_code, const std::string& verb,
                  const std::vector<std::string>& parts);

/// Whether `text` contains `part`.
bool mentions(const std::string& text, const std::string& part);

}  // namespace kda::cli::testing
