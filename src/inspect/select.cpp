#include "inspect/select.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "kda/error.h"

namespace kda::inspect {
namespace {

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::vector<Selection> by_ordinal(const Graph& graph, const std::vector<Selection>& all,
                                  std::int64_t wanted) {
  std::int64_t last = 0;
  for (const Node& node : graph.nodes)
    last = std::max(last, node.ordinal);
  const std::int64_t ordinal = wanted < 0 ? last + 1 + wanted : wanted;
  if (ordinal < 1 || ordinal > last) {
    throw Error(ErrorCode::kInvalidArgument,
                "expected an ordinal from 1 to " + std::to_string(last) + " or from -" +
                    std::to_string(last) + " to -1, got " + std::to_string(wanted));
  }
  std::vector<Selection> found;
  for (const Selection& item : all) {
    if (item.kind != Selection::Kind::kNode) continue;
    const Node& node = graph.nodes[static_cast<std::size_t>(item.node)];
    if (node.ordinal == ordinal && node.kind != NodeKind::kStage) found.push_back(item);
  }
  return found;
}

std::vector<Selection> by_label(const std::vector<Selection>& all, const std::string& word) {
  std::vector<Selection> found;
  for (const Selection& item : all) {
    if (item.kind != Selection::Kind::kNode) continue;
    if (item.name == word || without_pass(item.name) == word) found.push_back(item);
  }
  return found;
}

// "linear_1_3:1.2": the third output.
std::vector<Selection> by_output(const Graph& graph, const std::vector<Selection>& all,
                                 const std::string& word) {
  const std::size_t dot = word.rfind('.');
  if (dot == std::string::npos) return {};
  const auto output = whole_number(word.substr(dot + 1));
  if (!output || *output < 0) return {};
  std::vector<Selection> found = by_label(all, word.substr(0, dot));
  for (Selection& item : found) {
    const auto& outputs = graph.nodes[static_cast<std::size_t>(item.node)].outputs;
    if (*output >= static_cast<std::int64_t>(outputs.size())) {
      throw Error(ErrorCode::kInvalidArgument, item.name + " has outputs 0 to " +
                                                   std::to_string(outputs.size() - 1) + ", got " +
                                                   std::to_string(*output));
    }
    item.output = *output;
  }
  return found;
}

std::vector<Selection> by_path(const std::vector<Selection>& all, const std::string& word) {
  std::vector<Selection> found;
  for (const Selection& item : all) {
    if (item.kind == Selection::Kind::kNode) continue;
    const bool same = item.name == word || item.name == "model." + word;
    const bool kind = item.kind == Selection::Kind::kQuantity && item.quantity.kind == word;
    if (same || kind) found.push_back(item);
  }
  return found;
}

std::vector<Selection> by_glob(const std::vector<Selection>& all, const std::string& word) {
  if (word.find_first_of("*?[") == std::string::npos) return {};
  std::vector<Selection> found;
  for (const Selection& item : all) {
    if (::fnmatch(word.c_str(), item.name.c_str(), 0) == 0 ||
        ::fnmatch(("model." + word).c_str(), item.name.c_str(), 0) == 0)
      found.push_back(item);
  }
  return found;
}

[[noreturn]] void unknown(const std::string& word, const std::vector<Selection>& all) {
  std::set<std::string> names;
  for (const Selection& item : all) {
    names.insert(item.kind == Selection::Kind::kNode ? without_pass(item.name) : item.name);
    if (item.kind == Selection::Kind::kQuantity) names.insert(item.quantity.kind);
  }
  unknown_name(word, {names.begin(), names.end()});
}

std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = before + (a[i - 1] == b[j - 1] ? 0 : 1);
      before = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The first part of a path that is a number, as "model.layers.3.mlp" has; 0 without one.
std::int64_t number_in(const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const auto number = whole_number(path.substr(begin, end - begin));
    if (number && *number >= 0) return *number;
    begin = end + 1;
  }
  return 0;
}

// Changes from one path to another; one of the last parts alone counts as one more, and only where
// the part is long enough to say something.
std::size_t distance(const std::string& word, const std::string& name) {
  std::size_t least = edits(word, name);
  if (constexpr std::string_view kModel = "model."; name.starts_with(kModel)) {
    least = std::min(least, edits(word, name.substr(kModel.size())));
  }
  constexpr std::size_t kTelling = 4;
  const std::string last = word.substr(word.rfind('.') + 1);
  const std::string last_of_name = name.substr(name.rfind('.') + 1);
  if (last.size() < kTelling || last_of_name.size() < kTelling) return least;
  return std::min(least, edits(last, last_of_name) + 1);
}

}  // namespace

std::string without_pass(const std::string& label) {
  const std::size_t colon = label.find(':');
  if (colon == std::string::npos) return label;
  const std::size_t slash = label.find('/', colon);
  return label.substr(0, colon) + (slash == std::string::npos ? "" : label.substr(slash));
}

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
    if (words.back().empty()) {
      throw Error(ErrorCode::kInvalidArgument, "expected names, got \"" + std::string(list) + "\"");
    }
  }
  return words;
}

void unknown_name(const std::string& word, const std::vector<std::string>& names) {
  std::string text = "nothing is called '" + word + "'; nearest:";
  for (const std::string& name : nearest_names(word, names, 3))
    text += " " + name;
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::vector<std::string> nearest_names(const std::string& word,
                                       const std::vector<std::string>& words, std::size_t count) {
  std::vector<std::tuple<std::size_t, std::size_t, std::int64_t, std::string>> ranked;
  for (const std::string& name : words) {
    const std::int64_t layers_off = std::abs(number_in(word) - number_in(name));
    ranked.emplace_back(distance(word, name), edits(word, name), layers_off, name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i)
    out.push_back(std::get<3>(ranked[i]));
  return out;
}

std::vector<Selection> all_selections(const Graph& graph) {
  std::vector<Selection> all;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    all.push_back(
        {Selection::Kind::kNode, graph.nodes[i].label, static_cast<std::int64_t>(i), -1, {}});
  for (const Module& module : graph.modules)
    all.push_back({Selection::Kind::kModule, module.path, -1, -1, {}});
  for (const Quantity& quantity : quantities_of(graph))
    all.push_back({Selection::Kind::kQuantity, quantity.name, -1, -1, quantity});
  return all;
}

std::vector<Selection> select(const Graph& graph, std::string_view list) {
  const std::vector<Selection> all = all_selections(graph);
  std::vector<Selection> chosen;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const std::string& word : words_of(list)) {
    std::vector<Selection> found;
    if (const auto number = whole_number(word)) {
      found = by_ordinal(graph, all, *number);
    } else {
      found = by_label(all, word);
      if (found.empty()) found = by_path(all, word);
      if (found.empty()) found = by_output(graph, all, word);
      if (found.empty()) found = by_glob(all, word);
      if (found.empty()) unknown(word, all);
    }
    for (Selection& item : found)
      if (seen.emplace(item.name, item.output).second) chosen.push_back(std::move(item));
  }
  return chosen;
}

}  // namespace kda::inspect
