// Attention residuals: the operator and its two-phase form.
#include "model/attn_res.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kda/parallel.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kEps = 1e-5;

Tensors random_sources(std::int64_t count, std::int64_t tokens, std::int64_t width,
                       std::uint64_t seed, at::ScalarType type = at::kDouble) {
  Tensors sources;
  for (std::int64_t i = 0; i < count; ++i)
    sources.push_back(random_tensor({tokens, width}, seed + static_cast<std::uint64_t>(i), type));
  return sources;
}

TEST(AttnRes_Golden, ForwardAndGradients) {
  const Tensors sources{at::tensor({1.0, 2.0}, at::kDouble).view({1, 2}),
                        at::tensor({-3.0, 0.5}, at::kDouble).view({1, 2}),
                        at::tensor({0.25, -1.0}, at::kDouble).view({1, 2})};
  at::Tensor gain = at::tensor({1.5, 0.5}, at::kDouble).set_requires_grad(true);
  at::Tensor query = at::tensor({0.2, -0.4}, at::kDouble).view({1, 2}).set_requires_grad(true);
  const at::Tensor h = model::attn_res(sources, gain, query, kEps);
  EXPECT_LT(max_difference(h, at::tensor({-0.192096588, 0.242353581}, at::kDouble)), 1e-9);
  torch::autograd::backward({h}, {at::tensor({1.0, -2.0}, at::kDouble).view({1, 2})});
  EXPECT_LT(max_difference(query.grad(), at::tensor({1.485841262, -1.504004432}, at::kDouble)),
            1e-9);
  EXPECT_LT(max_difference(gain.grad(), at::tensor({0.198112168, 1.203203545}, at::kDouble)), 1e-9);
  // The weights: with p known, h is their sum over the sources; here each alone.
  const auto partial = model::attn_res_partials(sources, {{gain, query}}, kEps)[0];
  EXPECT_NEAR(1 / partial.total.item<double>(), 0.482063521, 1e-9);  // the largest of them
}

TEST(AttnRes_ZeroQuery, IsTheMean) {
  const Tensors sources = random_sources(4, 9, 21, 1);
  const at::Tensor query = at::zeros({1, 21}, sources[0].options());
  const at::Tensor h = model::attn_res(sources, random_tensor({21}, 9), query, kEps);
  EXPECT_LT(max_difference(h, (sources[0] + sources[1] + sources[2] + sources[3]) / 4), 1e-14);
}

TEST(AttnRes_OneSource, IsTheSourceItself) {
  const Tensors sources = random_sources(1, 9, 21, 10);
  const at::Tensor h =
      model::attn_res(sources, random_tensor({21}, 11), random_tensor({1, 21}, 12), kEps);
  EXPECT_TRUE(same_bits(h, sources[0]));
}

TEST(AttnRes_Forward, EqualsTheStackedForm) {
  for (const std::int64_t count : {1, 2, 9}) {
    const Tensors sources = random_sources(count, 40, 35, 20);
    const at::Tensor gain = random_tensor({35}, 30);
    const at::Tensor query = random_tensor({1, 35}, 31) * 2;
    const at::Tensor want = model::attn_res_composed(sources, gain, query, kEps);
    EXPECT_LT(max_difference(model::attn_res(sources, gain, query, kEps), want), 1e-13);
    Tensors narrow;
    Tensors rounded;
    for (const at::Tensor& source : sources) {
      narrow.push_back(source.to(at::kBFloat16));
      rounded.push_back(narrow.back().to(at::kDouble));
    }
    const at::Tensor gain32 = gain.to(at::kFloat);
    const at::Tensor query32 = query.to(at::kFloat);
    const at::Tensor h = model::attn_res(narrow, gain32, query32, kEps);
    EXPECT_EQ(h.scalar_type(), at::kFloat);  // one rounding is left to the caller
    const at::Tensor exact =
        model::attn_res_composed(rounded, gain32.to(at::kDouble), query32.to(at::kDouble), kEps);
    EXPECT_LT(max_difference(h, exact), 2e-6);
    if (count == 1) continue;
    narrow[0] = rounded[0].to(at::kFloat);  // mixed with f32
    EXPECT_LT(max_difference(model::attn_res(narrow, gain32, query32, kEps), exact), 2e-6);
  }
}

TEST(AttnRes_Scale, ValuesAreNotNormalised) {
  const Tensors sources = random_sources(3, 5, 8, 40);
  Tensors large;
  for (const at::Tensor& source : sources)
    large.push_back(source * 1000);
  const at::Tensor gain = random_tensor({8}, 41);
  const at::Tensor query = random_tensor({1, 8}, 42);
  EXPECT_LT(max_difference(model::attn_res(large, gain, query, 0.0) / 1000,
                           model::attn_res(sources, gain, query, 0.0)),
            1e-12);
}

TEST(AttnRes_Gradient, OfTheSources) {
  const at::Tensor gain = random_tensor({7}, 50);
  const at::Tensor query = random_tensor({1, 7}, 51) * 2;
  check_gradients(
      [&](const Tensors& in) { return Tensors{model::attn_res(in, gain, query, kEps)}; },
      random_sources(4, 3, 7, 52));
}

TEST(AttnRes_Gradient, OfGainAndQuery) {
  const Tensors sources = random_sources(4, 5, 7, 60);
  check_gradients(
      [&](const Tensors& in) { return Tensors{model::attn_res(sources, in[0], in[1], kEps)}; },
      {random_tensor({7}, 61), random_tensor({1, 7}, 62) * 2});
}

TEST(AttnRes_Gradient, OfASourceUsedTwice) {
  const at::Tensor gain = random_tensor({7}, 63);
  const at::Tensor query = random_tensor({1, 7}, 64);
  check_gradients(
      [&](const Tensors& in) {
        const at::Tensor h = model::attn_res({in[0], in[1]}, gain, query, kEps);
        return Tensors{model::attn_res({in[0], in[1], h}, gain, query, kEps)};
      },
      random_sources(2, 3, 7, 65));
}

TEST(AttnRes_Gradient, Bf16SourcesGetTheirOwnType) {
  Tensors narrow = random_sources(3, 20, 33, 70, at::kBFloat16);
  Tensors wide;
  for (at::Tensor& source : narrow) {
    wide.push_back(source.to(at::kDouble).set_requires_grad(true));
    source.set_requires_grad(true);
  }
  const at::Tensor gain = random_tensor({33}, 75);
  const at::Tensor query = random_tensor({1, 33}, 76);
  const at::Tensor dh = random_tensor({20, 33}, 77);
  torch::autograd::backward(
      {model::attn_res(narrow, gain.to(at::kFloat), query.to(at::kFloat), kEps)},
      {dh.to(at::kFloat)});
  torch::autograd::backward({model::attn_res(wide, gain, query, kEps)}, {dh});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(narrow[i].grad().scalar_type(), at::kBFloat16);
    EXPECT_LT(max_difference(narrow[i].grad(), wide[i].grad()), 0.01);
  }
}

TEST(AttnRes_TwoPhases, EqualTheDirectForm) {
  const Tensors finished = random_sources(5, 12, 18, 80);
  std::vector<model::AttnResWeights> places;
  for (std::uint64_t i = 0; i < 6; ++i)
    places.push_back({random_tensor({18}, 90 + i), random_tensor({1, 18}, 100 + i) * 3});
  const auto partials = model::attn_res_partials(finished, places, kEps);
  ASSERT_EQ(partials.size(), places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const at::Tensor running = random_tensor({12, 18}, 110 + i);
    Tensors all = finished;
    all.push_back(running);
    EXPECT_LT(max_difference(model::attn_res_merge(partials[i], running, places[i], kEps),
                             model::attn_res(all, places[i].gain, places[i].query, kEps)),
              1e-13);
    EXPECT_LT(max_difference(model::attn_res_finish(partials[i]),
                             model::attn_res(finished, places[i].gain, places[i].query, kEps)),
              1e-13);
  }
}

TEST(AttnRes_TwoPhases, LargeLogitsStayFinite) {
  const Tensors finished = random_sources(3, 4, 18, 120, at::kFloat);
  const model::AttnResWeights place{random_tensor({18}, 121, at::kFloat) * 100,
                                    random_tensor({1, 18}, 122, at::kFloat) * 100};
  const at::Tensor running = random_tensor({4, 18}, 123, at::kFloat);
  Tensors all = finished;
  all.push_back(running);
  const auto partial = model::attn_res_partials(finished, {place}, kEps)[0];
  const at::Tensor merged = model::attn_res_merge(partial, running, place, kEps);
  EXPECT_TRUE(merged.isfinite().all().item<bool>());
  EXPECT_LT(max_difference(merged, model::attn_res(all, place.gain, place.query, kEps)), 1e-3);
}

TEST(AttnRes_Arguments, AreChecked) {
  const at::Tensor gain = random_tensor({7}, 130);
  const at::Tensor query = random_tensor({1, 7}, 131);
  expect_contains(
      error_of([&] { model::attn_res(Tensors{}, gain, query, kEps); }, ErrorCode::kInvalidArgument),
      "sources");
  const Tensors uneven{random_tensor({3, 7}, 132), random_tensor({2, 7}, 133)};
  expect_contains(
      error_of([&] { model::attn_res(uneven, gain, query, kEps); }, ErrorCode::kInvalidArgument),
      "[2,7]");
}

TEST(AttnRes_Threads, GradientsDoNotDependOnThem) {
  const auto run = [&](int threads) {
    kda::set_num_threads(threads);
    Tensors sources = random_sources(3, 700, 40, 140, at::kFloat);
    for (at::Tensor& source : sources)
      source.set_requires_grad(true);
    at::Tensor gain = random_tensor({40}, 145, at::kFloat).set_requires_grad(true);
    at::Tensor query = random_tensor({1, 40}, 146, at::kFloat).set_requires_grad(true);
    torch::autograd::backward({model::attn_res(sources, gain, query, kEps)},
                              {random_tensor({700, 40}, 147, at::kFloat)});
    kda::set_num_threads(0);
    return Tensors{sources[0].grad(), sources[2].grad(), gain.grad(), query.grad()};
  };
  const Tensors one = run(1);
  const Tensors two = run(2);
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(same_bits(one[i], two[i])) << i;
}

}  // namespace
}  // namespace kda::test
