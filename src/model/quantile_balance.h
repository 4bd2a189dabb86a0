/// Load balancing of experts without an auxiliary loss: the selection bias is set after each
/// optimizer step from what the routers saw during it.
///
/// Quantile balancing. With m tokens, alpha_i the (k+1)-th largest s + b of token i, q = m k / E:
///   margin_ij = s_ij - alpha_i,   b_j <- -(the (floor(q)+1)-th largest margin of column j),
///   b <- b - mean(b)
/// so that every expert would have been chosen by q of the tokens, had the others stood still.
/// The histogram form counts r_ij = -margin_ij in equal bins over [b_min - 1, b_max + 1] and
/// interpolates where the count passes q: counts of micro-batches add up exactly, whatever the
/// number of tokens, and the error is at most one bin. Sign update: b_j <- b_j + u (sign(e_j) -
/// mean(sign e)), e_j = mean load - load of j. Sources: Kimi K3 report (arXiv 2607.24653) section
/// 2.3.3, appendices C and D; Muon is Scalable (Moonlight) report appendix C for the sign update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/router.h"

namespace kda::model {

enum class BalanceKind : std::uint8_t { kNone, kQuantile, kQuantileHistogram, kSign };

const char* name_of(BalanceKind kind);  ///< "none", "quantile", "histogram", "sign"

struct BalanceOptions {
  BalanceKind kind = BalanceKind::kQuantileHistogram;
  std::int64_t bins = 1000;  ///< of the histogram
  double sign_rate = 1e-3;   ///< u of the sign update
};

/// What the tokens of one optimizer step did at one layer.
class RoutingStatistics {
 public:
  explicit RoutingStatistics(const BalanceOptions& options = {}) : options_(options) {}

  const BalanceOptions& options() const { return options_; }

  /// Counts one micro-batch. `bias` is the one that the routing used; it must not change before
  /// `update`. `counted` [tokens] bool leaves tokens out (padding); undefined: all count.
  void add(const Routing& routing, const at::Tensor& bias, const at::Tensor& counted = {});

  /// Tokens of the step that went to each expert, [E] i64 on the device of the routing; undefined
  /// before the first `add`.
  const at::Tensor& loads() const { return loads_; }
  /// Tokens counted, [] i64 on the device of the routing; undefined before the first `add`.
  const at::Tensor& num_tokens() const { return tokens_; }

  /// Sets `bias` [E] in place for the next step and forgets the step. Nothing happens to the bias
  /// without tokens (fewer than two for the quantile forms) or when every expert gets every token.
  void update(at::Tensor bias);

  /// Forgets the step.
  void reset();

 private:
  BalanceOptions options_;
  std::int64_t chosen_ = 0;          // k
  at::Tensor loads_, tokens_;        // [E], []
  at::Tensor counts_;                // [E,bins] i64 of r, histogram form
  std::vector<at::Tensor> margins_;  // [tokens,E] of each micro-batch, exact form
};

/// The bias that the exact form gives for margins [m,E]; `chosen` is k. Not centred.
at::Tensor quantile_bias(const at::Tensor& margins, std::int64_t chosen);

}  // namespace kda::model
