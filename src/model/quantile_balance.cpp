#include "model/quantile_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <string>

#include "kda/error.h"
#include "model/tensors.h"

namespace kda::model {

const char* name_of(BalanceKind kind) {
  switch (kind) {
    case BalanceKind::kNone:
      return "none";
    case BalanceKind::kQuantile:
      return "quantile";
    case BalanceKind::kQuantileHistogram:
      return "histogram";
    case BalanceKind::kSign:
      return "sign";
  }
  return "?";
}

at::Tensor quantile_bias(const at::Tensor& margins, std::int64_t chosen) {
  const std::int64_t m = margins.size(0);
  const std::int64_t q = m * chosen / margins.size(1);
  const at::Tensor sorted =
      std::get<0>(margins.t().contiguous().sort(/*dim=*/-1, /*descending=*/true));
  return -sorted.select(1, q);
}

namespace {

// Bins of r = threshold - score: [low, low + bins * width).
struct Bins {
  at::Tensor low;    // []
  at::Tensor width;  // []
};

// The scores lie in (0,1) and the threshold is a score plus a bias, so this range holds every r.
Bins bins_of(const at::Tensor& bias, std::int64_t count) {
  const at::Tensor low = bias.min() - 1;
  return {low, (bias.max() + 1 - low) / static_cast<double>(count)};
}

// Counts [E,bins] of r [tokens,E]: integers, so that the order of additions does not matter.
at::Tensor histogram(const at::Tensor& r, const at::Tensor& rows_counted, const Bins& bins,
                     std::int64_t count) {
  const std::int64_t num_experts = r.size(1);
  // The limits after the conversion: they hold for NaN too, which must not become an address.
  const at::Tensor bin = ((r - bins.low) / bins.width).floor().to(at::kLong).clamp(0, count - 1);
  const at::Tensor row =
      at::arange(num_experts, bin.options()).unsqueeze(0) * count;  // start of each expert's bins
  const at::Tensor one = rows_counted.to(at::kLong).unsqueeze(1).expand(r.sizes()).contiguous();
  return at::zeros({num_experts * count}, bin.options())
      .scatter_add_(0, (bin + row).flatten(), one.flatten())
      .view({num_experts, count});
}

// The r below which q of the tokens lie, by linear interpolation inside the bin that reaches it.
at::Tensor histogram_quantile(const at::Tensor& counts, const at::Tensor& q, const Bins& bins) {
  const at::Tensor cumulative = counts.cumsum(1);
  const at::Tensor reached = cumulative.ge(q.ceil());
  const at::Tensor bin = reached.to(at::kInt).argmax(1, /*keepdim=*/true);  // the first that does
  const at::Tensor inside = counts.gather(1, bin);
  const at::Tensor before = cumulative.gather(1, bin) - inside;
  const at::ScalarType type = bins.low.scalar_type();
  const at::Tensor part =
      ((q - before) / inside.clamp_min(1).to(type)).clamp(0.0, 1.0).to(type).squeeze(1);
  return bins.low + (bin.squeeze(1).to(type) + part) * bins.width;
}

}  // namespace

void RoutingStatistics::add(const Routing& routing, const at::Tensor& bias,
                            const at::Tensor& counted) {
  if (options_.kind == BalanceKind::kQuantileHistogram && options_.bins < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                "balance: bins: expected at least 2, got " + std::to_string(options_.bins));
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor& scores = routing.scores;
  const std::int64_t num_experts = scores.size(1);
  chosen_ = routing.experts.size(1);
  const auto counts = routing.experts.options();
  if (!loads_.defined()) {
    loads_ = at::zeros({num_experts}, counts);
    tokens_ = at::zeros({}, counts);
  }
  const at::Tensor rows = counted.defined()
                              ? counted.to(scores.device(), at::kBool)
                              : at::full({scores.size(0)}, true, counts.dtype(at::kBool));
  const at::Tensor ones =
      rows.to(at::kLong).unsqueeze(1).expand(routing.experts.sizes()).contiguous();
  loads_.scatter_add_(0, routing.experts.flatten(), ones.flatten());
  tokens_.add_(rows.sum());
  if (!routing.threshold.defined()) return;  // every expert sees every token
  const at::Tensor margins = scores.detach() - routing.threshold.unsqueeze(1);
  if (options_.kind == BalanceKind::kQuantile) {
    margins_.push_back(counted.defined() ? margins.index_select(0, rows.nonzero().squeeze(1))
                                         : margins);
  } else if (options_.kind == BalanceKind::kQuantileHistogram) {
    const at::Tensor more =
        histogram(-margins, rows, bins_of(bias.detach(), options_.bins), options_.bins);
    counts_ = counts_.defined() ? counts_.add_(more) : more;
  }
}

void RoutingStatistics::update(at::Tensor bias) {
  const c10::NoGradGuard no_grad;
  const std::int64_t num_experts = bias.size(0);
  if (loads_.defined() && chosen_ < num_experts) {
    switch (options_.kind) {
      case BalanceKind::kNone:
        break;
      case BalanceKind::kSign: {
        const at::Tensor loads = loads_.to(bias.scalar_type());
        const at::Tensor sign = (loads.mean() - loads).sign();
        bias.add_((sign - sign.mean()) * options_.sign_rate);
        break;
      }
      case BalanceKind::kQuantile: {
        const at::Tensor margins = at::cat(margins_);
        if (margins.size(0) < 2) break;
        const at::Tensor wanted = quantile_bias(margins, chosen_);
        // A step of NaN scores (the trainer stops there) leaves the bias alone.
        bias.copy_(at::where(wanted.isfinite().all(), wanted - wanted.mean(), bias));
        break;
      }
      case BalanceKind::kQuantileHistogram: {
        // In one go and without reading the token count back: with too few tokens the old bias
        // is kept by a selection on the device.
        const at::Tensor q = tokens_.to(at::kDouble) * static_cast<double>(chosen_) /
                             static_cast<double>(num_experts);
        const at::Tensor wanted = histogram_quantile(counts_, q, bins_of(bias, options_.bins));
        bias.copy_(at::where(tokens_ < 2, bias, wanted - wanted.mean()));
        break;
      }
    }
  }
  reset();
}

void RoutingStatistics::reset() {
  loads_ = at::Tensor();
  tokens_ = at::Tensor();
  counts_ = at::Tensor();
  margins_.clear();
}

}  // namespace kda::model
