#include "text/chrf.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "text/characters.h"

namespace kda::text {
namespace {

std::u32string without_spaces(std::string_view text) {
  std::u32string characters = to_code_points(text);
  std::erase_if(characters, is_white_space);
  return characters;
}

using Counts = std::unordered_map<std::u32string_view, std::int64_t>;

Counts count_grams(const std::u32string& characters, std::size_t order) {
  Counts counts;
  const std::u32string_view view = characters;
  for (std::size_t i = 0; i + order <= view.size(); ++i)
    ++counts[view.substr(i, order)];
  return counts;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void ChrfStatistics::add(std::string_view hypothesis, std::string_view reference) {
  const std::u32string hyp = without_spaces(hypothesis);
  const std::u32string ref = without_spaces(reference);
  for (std::size_t order = 1; order <= kChrfOrder && order <= ref.size(); ++order) {
    Order& sums = orders_[order - 1];
    sums.reference += static_cast<std::int64_t>(ref.size() - order + 1);
    if (order > hyp.size()) continue;
    sums.hypothesis += static_cast<std::int64_t>(hyp.size() - order + 1);
    const Counts known = count_grams(ref, order);
    for (const auto& [gram, count] : count_grams(hyp, order)) {
      const auto found = known.find(gram);
      if (found != known.end()) sums.matches += std::min(count, found->second);
    }
  }
}

double ChrfStatistics::score() const {
  double precision = 0;
  double recall = 0;
  int used = 0;
  for (const Order& sums : orders_) {
    if (sums.hypothesis == 0 || sums.reference == 0) continue;
    precision += ratio(sums.matches, sums.hypothesis);
    recall += ratio(sums.matches, sums.reference);
    ++used;
  }
  if (precision + recall == 0) return 0.0;
  precision /= used;
  recall /= used;
  constexpr double kBetaSquared = 4.0;
  return 100.0 * (1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall);
}

double sentence_chrf(std::string_view hypothesis, std::string_view reference) {
  ChrfStatistics statistics;
  statistics.add(hypothesis, reference);
  return statistics.score();
}

}  // namespace kda::text
