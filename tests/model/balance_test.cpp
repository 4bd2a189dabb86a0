// Load balancing of experts: golden numbers, pooling over micro-batches, the fall of the load.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model/model_test_support.h"
#include "model/quantile_balance.h"

namespace kda::test {
namespace {

using model::BalanceKind;
using model::BalanceOptions;
using model::RoutingStatistics;

// What the router makes of given scores.
model::Routing routing_of(const at::Tensor& scores, const at::Tensor& bias, std::int64_t k) {
  const auto [values, indices] = (scores + bias).topk(std::min(k + 1, scores.size(1)), -1);
  model::Routing routing;
  routing.scores = scores;
  routing.experts = indices.narrow(1, 0, k).contiguous();
  routing.weights = scores.gather(1, routing.experts);
  if (k < scores.size(1)) routing.threshold = values.select(1, k).contiguous();
  return routing;
}

std::vector<std::int64_t> loads_of(const at::Tensor& scores, const at::Tensor& bias,
                                   std::int64_t k) {
  RoutingStatistics statistics;
  statistics.add(routing_of(scores, bias, k), bias);
  const auto span = model::host_span(statistics.loads());
  return {span.begin(), span.end()};
}

at::Tensor golden_scores() {
  return at::tensor(
             {.48, .62, .29, .52, .42, .65, .35, .06, .71, .50, .69, .46, .57, .34, .22, .09,
              .82, .45, .24, .22, .77, .63, .36, .52, .55, .37, .64, .13, .63, .76, .30, .06},
             at::kDouble)
      .view({8, 4});
}

at::Tensor zero_bias(std::int64_t n) {
  return at::zeros({n}, at::TensorOptions().dtype(at::kDouble));
}

using Loads = std::vector<std::int64_t>;

TEST(Balance_Golden, ExactQuantiles) {
  const at::Tensor scores = golden_scores();
  at::Tensor bias = zero_bias(4);
  EXPECT_EQ(loads_of(scores, bias, 1), (Loads{4, 3, 1, 0}));
  const auto routing = routing_of(scores, bias, 1);
  EXPECT_LT(max_difference(routing.threshold,
                           at::tensor({.52, .42, .69, .34, .45, .63, .55, .63}, at::kDouble)),
            1e-12);
  EXPECT_LT(max_difference(model::quantile_bias(scores - routing.threshold.unsqueeze(1), 1),
                           at::tensor({-.14, -.10, .07, .23}, at::kDouble)),
            1e-12);
  RoutingStatistics statistics({BalanceKind::kQuantile});
  statistics.add(routing, bias);
  statistics.update(bias);
  EXPECT_LT(max_difference(bias, at::tensor({-.155, -.115, .055, .215}, at::kDouble)), 1e-12);
  EXPECT_EQ(loads_of(scores, bias, 1), (Loads{2, 2, 2, 2}));
}

TEST(Balance_Golden, HistogramIsWithinOneBin) {
  const at::Tensor scores = golden_scores();
  for (const std::int64_t bins : {100, 1000}) {
    at::Tensor bias = zero_bias(4);
    RoutingStatistics statistics({BalanceKind::kQuantileHistogram, bins});
    statistics.add(routing_of(scores, bias, 1), bias);
    statistics.update(bias);
    // The exact form takes the (q+1)-th margin, the histogram the bin edge after the q-th: with
    // eight tokens the two may be a margin apart, so the balance is what is compared.
    EXPECT_EQ(loads_of(scores, bias, 1), (Loads{2, 2, 2, 2})) << bins;
    EXPECT_LT(std::abs(bias.sum().item<double>()), 1e-12);
  }
}

// Sigmoid scores of normal logits with a head start for the low experts.
at::Tensor skewed_scores(std::int64_t tokens, std::int64_t experts) {
  const at::Tensor u = random_tensor({tokens, experts}, 31) * 0.4999999 + 0.5;
  const at::Tensor v = random_tensor({tokens, experts}, 32) * 0.5 + 0.5;
  const at::Tensor normal = (u.log() * -2).sqrt() * (v * (2 * std::numbers::pi)).cos();
  at::Tensor skew = at::zeros({experts}, u.options());
  for (std::int64_t e = 0; e < experts; ++e)
    skew[e] = 1.5 - 3.0 * static_cast<double>(e) / static_cast<double>(experts - 1);
  return (normal + skew).sigmoid();
}

TEST(Balance_Steps, TheLoadFallsToTheTarget) {
  const at::Tensor scores = skewed_scores(2048, 16);
  for (const BalanceKind kind : {BalanceKind::kQuantile, BalanceKind::kQuantileHistogram}) {
    at::Tensor bias = zero_bias(16);
    std::vector<std::int64_t> largest;
    std::vector<std::int64_t> smallest;
    for (int step = 0; step < 8; ++step) {
      RoutingStatistics statistics({kind});
      statistics.add(routing_of(scores, bias, 2), bias);
      largest.push_back(statistics.loads().max().item<std::int64_t>());
      smallest.push_back(statistics.loads().min().item<std::int64_t>());
      statistics.update(bias);
    }
    // The target is 2048 * 2 / 16 = 256.
    EXPECT_GT(largest.front(), 600) << name_of(kind);
    EXPECT_LT(smallest.front(), 80) << name_of(kind);
    EXPECT_LT(largest[1], largest[0]) << name_of(kind);
    EXPECT_GT(smallest[1], smallest[0]) << name_of(kind);
    EXPECT_LT(largest[3], 360) << name_of(kind);
    EXPECT_LT(largest.back(), 290) << name_of(kind);
    EXPECT_GT(smallest.back(), 220) << name_of(kind);
  }
}

TEST(Balance_Histogram, NearTheExactFormOnManyTokens) {
  const at::Tensor scores = skewed_scores(2048, 16);
  const at::Tensor start = random_tensor({16}, 33) * 0.05;
  at::Tensor exact = start.clone();
  at::Tensor binned = start.clone();
  RoutingStatistics one({BalanceKind::kQuantile});
  RoutingStatistics two({BalanceKind::kQuantileHistogram, 1000});
  one.add(routing_of(scores, exact, 2), exact);
  two.add(routing_of(scores, binned, 2), binned);
  one.update(exact);
  two.update(binned);
  EXPECT_LT(max_difference(exact, binned), 2 * 2.1 / 1000);  // a bin each, before centring
}

TEST(Balance_Pooling, MicroBatchesAddUp) {
  const at::Tensor scores = skewed_scores(600, 8);
  const at::Tensor start = random_tensor({8}, 34) * 0.1;
  for (const BalanceKind kind :
       {BalanceKind::kQuantile, BalanceKind::kQuantileHistogram, BalanceKind::kSign}) {
    at::Tensor whole = start.clone();
    at::Tensor pooled = start.clone();
    RoutingStatistics one({kind});
    RoutingStatistics many({kind});
    one.add(routing_of(scores, start, 2), start);
    for (const auto& [begin, count] : {std::pair(0, 1), {1, 399}, {400, 200}})
      many.add(routing_of(scores.narrow(0, begin, count), start, 2), start);
    EXPECT_TRUE(same_bits(one.loads(), many.loads()));
    one.update(whole);
    many.update(pooled);
    EXPECT_TRUE(same_bits(whole, pooled)) << name_of(kind);
    EXPECT_GT(max_difference(whole, start), 1e-4);
  }
}

TEST(Balance_Sign, MovesAgainstTheLoad) {
  at::Tensor bias = zero_bias(4);
  RoutingStatistics statistics({BalanceKind::kSign, 1000, 1e-3});
  statistics.add(routing_of(golden_scores(), bias, 1), bias);  // loads 4, 3, 1, 0, mean 2
  statistics.update(bias);
  EXPECT_LT(max_difference(bias, at::tensor({-1e-3, -1e-3, 1e-3, 1e-3}, at::kDouble)), 1e-15);
}

TEST(Balance_Edges, NothingToBalanceChangesNothing) {
  const at::Tensor scores = golden_scores();
  for (const BalanceKind kind : {BalanceKind::kNone, BalanceKind::kQuantile,
                                 BalanceKind::kQuantileHistogram, BalanceKind::kSign}) {
    const at::Tensor start = random_tensor({4}, 35);
    at::Tensor bias = start.clone();
    RoutingStatistics idle({kind});
    idle.update(bias);  // no tokens
    EXPECT_TRUE(same_bits(bias, start)) << name_of(kind);
    RoutingStatistics all({kind});
    all.add(routing_of(scores, start, 4), start);  // every expert has every token
    all.update(bias);
    EXPECT_TRUE(same_bits(bias, start)) << name_of(kind);
    if (kind == BalanceKind::kSign || kind == BalanceKind::kNone) continue;
    RoutingStatistics single({kind});
    single.add(routing_of(scores.narrow(0, 0, 1), start, 1), start);  // one token
    single.update(bias);
    EXPECT_TRUE(same_bits(bias, start)) << name_of(kind);
    RoutingStatistics padding({kind});
    padding.add(routing_of(scores, start, 1), start,
                at::zeros({8}, at::TensorOptions().dtype(at::kBool)));
    padding.update(bias);
    EXPECT_TRUE(same_bits(bias, start)) << name_of(kind);
  }
}

TEST(Balance_Options, TooFewBinsAreRefused) {
  RoutingStatistics statistics({BalanceKind::kQuantileHistogram, 1});
  const at::Tensor bias = zero_bias(4);
  expect_contains(error_of([&] { statistics.add(routing_of(golden_scores(), bias, 1), bias); },
                           ErrorCode::kInvalidArgument),
                  "bins");
}

}  // namespace
}  // namespace kda::test
