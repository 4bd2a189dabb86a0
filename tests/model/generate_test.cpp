#include "model/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::CausalLM;
using model::FinishReason;
using model::GenerateOptions;
using model::Sampler;
using model::SamplingOptions;

at::Tensor logits_of(const std::vector<float>& values) {
  at::Tensor t =
      at::empty({static_cast<std::int64_t>(values.size())}, at::TensorOptions().dtype(at::kFloat));
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<float>());
  return t;
}

std::map<std::int64_t, int> histogram(const SamplingOptions& options, const at::Tensor& logits,
                                      int draws) {
  const Sampler sampler(options);
  std::map<std::int64_t, int> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[sampler.sample(logits, 0, static_cast<std::uint64_t>(i))];
  return counts;
}

TEST(Philox_Numbers, EqualThePublishedVectors) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(model::philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_EQ(model::philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(model::philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                              {0xa4093822U, 0x299f31d0U}),
            (Words{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Sampler_Greedy, TakesTheFirstOfTheLargest) {
  const Sampler sampler{SamplingOptions{}};
  EXPECT_EQ(sampler.sample(logits_of({0.5F, 2.0F, -1.0F, 2.0F}), 0, 0), 1);
}

TEST(Sampler_Distribution, FollowsTheSoftmax) {
  SamplingOptions options;
  options.temperature = 0.7;
  const std::vector<float> values{0.0F, 1.0F, 2.0F, -1.0F};
  const int draws = 40'000;
  const auto counts = histogram(options, logits_of(values), draws);
  double total = 0;
  for (const float v : values)
    total += std::exp(v / 0.7);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = std::exp(values[i] / 0.7) / total;
    EXPECT_NEAR(counts.at(static_cast<std::int64_t>(i)), draws * p, 5 * std::sqrt(draws * p)) << i;
  }
}

TEST(Sampler_Filters, TopKAndTopPKeepTheBest) {
  const at::Tensor logits = logits_of({1.0F, 1.2F, 0.8F, 1.1F, -2.0F});
  SamplingOptions options;
  options.temperature = 1.0;
  const auto drawn = [&] {
    std::set<std::int64_t> ids;
    for (const auto& [id, count] : histogram(options, logits, 2000))
      ids.insert(id);
    return ids;
  };
  options.top_k = 2;
  EXPECT_EQ(drawn(), (std::set<std::int64_t>{1, 3}));
  options.top_k = 1'000'000'000;
  EXPECT_EQ(drawn().size(), 5U);
  options.top_k = 0;
  options.top_p = 1e-9;
  EXPECT_EQ(drawn(), (std::set<std::int64_t>{1}));
  options.top_p = 0.5;  // 0.289 + 0.262 of the mass
  EXPECT_EQ(drawn(), (std::set<std::int64_t>{1, 3}));
  options.top_p = 1.0;
  EXPECT_EQ(drawn().size(), 5U);
}

TEST(Sampler_Extremes, TinyTemperatureAndHugeLogits) {
  SamplingOptions options;
  options.temperature = 1e-4;
  EXPECT_EQ(histogram(options, logits_of({3e38F, -3e38F, 1.0F}), 50).size(), 1U);
  EXPECT_EQ(histogram(options, logits_of({1.0F, 1.01F}), 50).begin()->first, 1);
  options.temperature = 1e-300;
  EXPECT_EQ(histogram(options, logits_of({5.0F, 5.0F}), 200).size(), 2U);  // a tie stays a tie
  options.temperature = 1e300;
  EXPECT_EQ(histogram(options, logits_of({5.0F, -5.0F}), 200).size(), 2U);
}

TEST(Sampler_Arguments, BadOnesAreRefused) {
  const auto refused = [](const char* part, const std::function<void(SamplingOptions&)>& spoil) {
    SamplingOptions options;
    spoil(options);
    expect_contains(error_of([&] { Sampler{options}; }, ErrorCode::kInvalidArgument), part);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  refused("temperature", [](SamplingOptions& o) { o.temperature = -1; });
  refused("temperature", [&](SamplingOptions& o) { o.temperature = nan; });
  refused("temperature", [&](SamplingOptions& o) { o.temperature = inf; });
  refused("top_p", [](SamplingOptions& o) { o.top_p = 0; });
  refused("top_p", [](SamplingOptions& o) { o.top_p = 1.5; });
  refused("top_p", [&](SamplingOptions& o) { o.top_p = nan; });
  refused("top_k", [](SamplingOptions& o) { o.top_k = -1; });
  const Sampler sampler{SamplingOptions{}};
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    error_of([&] { sampler.sample(logits_of({0.0F, bad}), 0, 0); }, ErrorCode::kNonFinite);
  }
}

class Generate : public testing::Test {
 protected:
  Generate() : lm(make_model(small_config(), DType::kF32)) { spread_weights(lm, 50); }
  CausalLM lm;
  const std::vector<std::int64_t> a = random_ids(3, 61, 51);
  const std::vector<std::int64_t> b = random_ids(40, 61, 52);
};

TEST_F(Generate, RowsAndPiecesDoNotMatter) {
  GenerateOptions options;
  options.max_new_tokens = 30;
  const auto both = model::generate(lm, {a, b}, options);
  EXPECT_EQ(both[0].ids, model::generate(lm, {a}, options)[0].ids);
  EXPECT_EQ(both[1].ids, model::generate(lm, {b}, options)[0].ids);
  EXPECT_EQ(both[0].ids.size(), 30U);
  EXPECT_EQ(both[0].reason, FinishReason::kLength);
  for (const std::int64_t piece : {1, 7, 40}) {
    options.prefill_piece = piece;
    const auto cut = model::generate(lm, {a, b}, options);
    EXPECT_EQ(cut[0].ids, both[0].ids);
    EXPECT_EQ(cut[1].ids, both[1].ids);
  }
}

TEST_F(Generate, StopsAtStopTokensWhileOthersGoOn) {
  GenerateOptions options;
  options.max_new_tokens = 25;
  const auto free_run = model::generate(lm, {a, b}, options);
  const std::int64_t stop = free_run[0].ids[4];
  options.stop_ids = {stop};
  const auto stopped = model::generate(lm, {a, b}, options);
  EXPECT_EQ(stopped[0].reason, FinishReason::kStop);
  for (std::size_t n = 0; n < 2; ++n) {
    auto expected = free_run[n].ids;
    expected.erase(std::find(expected.begin(), expected.end(), stop), expected.end());
    EXPECT_EQ(stopped[n].ids, expected) << n;
  }
}

TEST_F(Generate, CallbackSeesEachTokenAndCanEndARow) {
  GenerateOptions options;
  options.max_new_tokens = 12;
  std::map<std::int64_t, std::vector<std::int64_t>> seen;
  const auto rows = model::generate(lm, {a, b}, options, [&](std::int64_t row, std::int64_t id) {
    seen[row].push_back(id);
    return !(row == 1 && seen[1].size() == 5);
  });
  EXPECT_EQ(rows[0].reason, FinishReason::kLength);
  EXPECT_EQ(rows[1].reason, FinishReason::kCancelled);
  EXPECT_EQ(seen[0], rows[0].ids);
  EXPECT_EQ(seen[1], rows[1].ids);
  EXPECT_EQ(seen[1].size(), 5U);
}

TEST_F(Generate, SameSeedSameTokensWhateverTheBatch) {
  GenerateOptions options;
  options.max_new_tokens = 30;
  options.sampling.temperature = 1.0;
  options.sampling.seed = 9;
  const auto both = model::generate(lm, {a, b}, options);
  EXPECT_EQ(both[0].ids, model::generate(lm, {a, b}, options)[0].ids);
  EXPECT_EQ(both[0].ids, model::generate(lm, {a}, options)[0].ids);
  GenerateOptions second = options;
  second.first_row = 1;
  EXPECT_EQ(both[1].ids, model::generate(lm, {b}, second)[0].ids);
  options.sampling.seed = 10;
  EXPECT_NE(both[0].ids, model::generate(lm, {a}, options)[0].ids);
}

TEST_F(Generate, ContinuesFromAState) {
  GenerateOptions options;
  options.max_new_tokens = 20;
  const auto whole = model::generate(lm, {b}, options)[0].ids;
  model::DecodeState state = lm.new_state(1);
  lm.prefill(model::pack({{b.begin(), b.begin() + 33}}), state);
  EXPECT_EQ(model::generate(lm, state, {{b.begin() + 33, b.end()}}, options)[0].ids, whole);
  EXPECT_EQ(state.lengths()[0], 40 + 19);  // the last token was produced, not fed
}

TEST_F(Generate, BadArgumentsAreRefused) {
  GenerateOptions options;
  const auto refused = [&](const std::vector<std::vector<std::int64_t>>& prompts,
                           const char* part) {
    expect_contains(
        error_of([&] { model::generate(lm, prompts, options); }, ErrorCode::kInvalidArgument),
        part);
  };
  refused({}, "prompts");
  refused({a, {}}, "prompts");
  refused({{1, 61}}, "61");
  options.max_new_tokens = -1;
  refused({a}, "max_new_tokens");
  options.max_new_tokens = 0;
  EXPECT_TRUE(model::generate(lm, {a}, options)[0].ids.empty());
  options.prefill_piece = 0;
  refused({a}, "prefill_piece");
}

TEST_F(Generate, NonFiniteLogitsNameTheLayer) {
  for (const model::Parameter& p : lm.parameters()) {
    if (p.name == "model.layers.1.self_attn.o_proj.weight") {
      p.tensor.detach().view({-1})[3].fill_(std::nanf(""));
    }
  }
  const std::string text =
      error_of([&] { model::generate(lm, {a}, GenerateOptions{}); }, ErrorCode::kNonFinite);
  expect_contains(text, "layers.1.attn");
}

TEST_F(Generate, NonFiniteStateIsNamed) {
  model::DecodeState state = lm.new_state(1);
  state.layers()[1].state_kv.view({-1})[0].fill_(std::nanf(""));
  const std::string text =
      error_of([&] { model::generate(lm, state, {a}, GenerateOptions{}); }, ErrorCode::kNonFinite);
  expect_contains(text, "layers.1, in the decode state");
}

}  // namespace
}  // namespace kda::test
