#include "inspect/select.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <set>

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

// "linear_1_1:2" without its pass; a stage keeps what follows: "chunk_kda_1_9/gate".
std::string without_pass(const std::string& label) {
  const std::size_t colon = label.find(':');
  if (colon == std::string::npos) return label;
  const std::size_t slash = label.find('/', colon);
  return label.substr(0, colon) + (slash == std::string::npos ? "" : label.substr(slash));
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
  std::string text = "nothing is called '" + word + "'; nearest:";
  for (const std::string& name : nearest_names(word, {names.begin(), names.end()}, 3))
    text += " " + name;
  throw Error(ErrorCode::kInvalidArgument, text);
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

}  // namespace

std::vector<std::string> nearest_names(const std::string& word,
                                       const std::vector<std::string>& words, std::size_t count) {
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& name : words)
    ranked.emplace_back(edits(word, name), name);
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i)
    out.push_back(ranked[i].second);
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
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string word(list.substr(begin, end - begin));
    begin = end + 1;
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
