/// Help texts that wrap at the width of the page.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kda::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_footer(const CLI::App* app) const override;
};

/// Breaks `text` at spaces so that no line passes `width`; lines after the first are indented by
/// `indent`.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

}  // namespace kda::cli
