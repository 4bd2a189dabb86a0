#include "cli/help_formatter.h"

#include <sstream>
#include <utility>

namespace kda::cli {
namespace {

constexpr std::size_t kPageWidth = 100;
constexpr std::size_t kColumn = 30;

}  // namespace

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::istringstream words(text);
  std::string out;
  std::string word;
  std::size_t column = 0;
  while (words >> word) {
    if (column > 0 && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

HelpFormatter::HelpFormatter() {
  column_width(kColumn);
  label("SUBCOMMANDS", "Commands");
  label("Subcommands", "Commands");
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  // The base class ends blocks with a blank line and begins the next with another.
  const std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool third = text[i] == '\n' && out.size() >= 2 && out.ends_with("\n\n");
    if (!third) out += text[i];
  }
  return out;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = "  " + make_option_name(option, is_positional);
  if (option->get_type_size() != 0 && !option->get_type_name().empty()) {
    left += " " + option->get_type_name();
  }
  std::string right = option->get_description();
  if (option->get_required()) right += " (required)";
  const std::string preset = option->get_default_str();
  if (!preset.empty()) right += " [" + preset + "]";
  if (left.size() + 2 > kColumn) {
    left += "\n" + std::string(kColumn, ' ');
  } else {
    left.resize(kColumn, ' ');
  }
  return left + wrapped(right, kPageWidth - kColumn, kColumn) + "\n";
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string line = "Usage: " + (name.empty() ? app->get_name() : name);
  const bool has_verbs =
      !app->get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); }).empty();
  if (has_verbs) line += " COMMAND";
  for (const CLI::Option* option : app->get_options()) {
    if (!option->nonpositional()) {
      const std::string value = option->get_name(true);
      line += option->get_required() ? " " + value : " [" + value + "]";
      if (option->get_items_expected_max() > 1) line += "...";
    }
  }
  return line + " [OPTIONS]\n";
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  const std::string footer = app->get_footer();
  return footer.empty() ? std::string() : "\n" + footer + "\n";
}

}  // namespace kda::cli
