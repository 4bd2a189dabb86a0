/// Text tables with columns as wide as they need to be.
#pragma once

#include <string>
#include <vector>

namespace kda::cli {

class Table {
 public:
  /// Columns whose header starts with '>' are set to the right.
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> right_;
};

/// Columns that `text` takes on a terminal: East Asian wide characters count two.
std::size_t display_width(const std::string& text);

}  // namespace kda::cli
