/// chrF2 of one sentence and of a corpus (Popović 2015): F-score of character n-grams.
///
///   P_n, R_n   clipped matches over the n-grams of hypothesis and of reference, n = 1..6
///   P, R       means over the orders that both sides have
///   chrF2      100 * (1 + 4) P R / (4 P + R)
///
/// The settings are those of sacreBLEU's signature nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no:
/// white space does not count, an order that the reference lacks counts for neither side. Scores
/// that are published come from sacreBLEU itself; this one decides about single sentences.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kda::text {

inline constexpr std::size_t kChrfOrder = 6;

/// Sums over sentences; a corpus score is the score of the sums.
class ChrfStatistics {
 public:
  void add(std::string_view hypothesis, std::string_view reference);
  /// In [0, 100]; 0 when nothing matches.
  double score() const;

 private:
  struct Order {
    std::int64_t hypothesis = 0;
    std::int64_t reference = 0;
    std::int64_t matches = 0;
  };
  std::array<Order, kChrfOrder> orders_{};
};

double sentence_chrf(std::string_view hypothesis, std::string_view reference);

}  // namespace kda::text
