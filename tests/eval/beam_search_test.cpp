#include "eval/beam_search.h"

#include <ATen/ops/exp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "model/generate.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using eval::beam_search;
using eval::BeamHypothesis;
using eval::BeamOptions;
using model::CausalLM;
using model::FinishReason;
using Ids = std::vector<std::int64_t>;

CausalLM four_tokens(std::uint64_t seed) {
  model::KDAConfig config = small_config();
  config.vocab_size = 4;
  config.initializer_range = 0.4;  // distributions that are not flat
  return make_model(config, DType::kF32, seed);
}

// Sum of log p of `ids` after `prompt`, by one full forward pass.
double log_prob(const CausalLM& model, const Ids& prompt, const Ids& ids) {
  Ids all = prompt;
  all.insert(all.end(), ids.begin(), ids.end());
  Ids targets(all.size(), model::kIgnoreTarget);
  for (std::size_t i = prompt.size(); i < all.size(); ++i)
    targets[i - 1] = all[i];
  return -model.token_losses(model::pack({all}), index(targets)).sum().item<double>();
}

// The best of all sequences of at most `limit` - 1 tokens that end in token 0.
BeamHypothesis best_of_all(const CausalLM& model, const Ids& prompt, std::size_t limit,
                           double penalty) {
  BeamHypothesis best;
  best.score = -std::numeric_limits<double>::infinity();
  std::vector<Ids> level{{}};
  for (std::size_t length = 0; length < limit; ++length) {
    std::vector<Ids> next;
    for (const Ids& ids : level) {
      Ids ended = ids;
      ended.push_back(0);
      const double sum = log_prob(model, prompt, ended);
      const double score = sum / std::pow(static_cast<double>(length + 1), penalty);
      if (score > best.score) best = {ids, sum, score, FinishReason::kStop};
      for (const std::int64_t id : {1, 2, 3}) {
        next.push_back(ids);
        next.back().push_back(id);
      }
    }
    level = std::move(next);
  }
  return best;
}

TEST(BeamSearch_WideBeam, FindsTheBestOfAllSequences) {
  int longer = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const CausalLM model = four_tokens(seed);
    for (const double penalty : {0.0, 1.0, 2.0}) {
      BeamOptions options;
      options.beam = 200;
      options.length_penalty = penalty;
      options.max_new_tokens = 4;
      options.stop_ids = {0};
      const Ids prompt{1, static_cast<std::int64_t>(seed % 4), 3};
      const BeamHypothesis found = beam_search(model, {prompt}, options).front();
      const BeamHypothesis best = best_of_all(model, prompt, 4, penalty);
      EXPECT_EQ(found.ids, best.ids) << seed << " " << penalty;
      EXPECT_NEAR(found.log_prob, best.log_prob, 1e-4);
      EXPECT_NEAR(found.score, best.score, 1e-4);
      EXPECT_EQ(found.reason, FinishReason::kStop);
      longer += found.ids.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(longer, 3);  // the penalty asked for long ones
}

TEST(BeamSearch_BeamOne, IsGreedy) {
  const CausalLM model = make_model(small_config(), DType::kF32, 3);
  std::vector<Ids> prompts;
  for (const std::int64_t length : {1, 5, 17})
    prompts.push_back(random_ids(length, 61, static_cast<std::uint64_t>(length)));
  model::GenerateOptions greedy;
  greedy.max_new_tokens = 24;
  greedy.stop_ids = {7, 20, 33, 41};
  BeamOptions options;
  options.beam = 1;
  options.max_new_tokens = greedy.max_new_tokens;
  options.stop_ids = greedy.stop_ids;
  const auto wanted = model::generate(model, prompts, greedy);
  const auto got = beam_search(model, prompts, options);
  for (std::size_t n = 0; n < prompts.size(); ++n) {
    EXPECT_EQ(got[n].ids, wanted[n].ids) << n;
    EXPECT_EQ(got[n].reason, wanted[n].reason) << n;
  }
}

TEST(BeamSearch_Rows, DoNotInfluenceEachOther) {
  const CausalLM model = make_model(small_config(), DType::kF32, 5);
  std::vector<Ids> prompts;
  for (const std::int64_t length : {3, 40, 1, 9})
    prompts.push_back(random_ids(length, 61, static_cast<std::uint64_t>(length)));
  BeamOptions options;
  options.beam = 3;
  options.max_new_tokens = 12;
  options.stop_ids = {7, 20};
  const auto together = beam_search(model, prompts, options);
  for (std::size_t n = 0; n < prompts.size(); ++n) {
    const BeamHypothesis alone = beam_search(model, {prompts[n]}, options).front();
    EXPECT_EQ(together[n].ids, alone.ids) << n;
    EXPECT_NEAR(together[n].score, alone.score, 1e-4) << n;
    Ids scored = alone.ids;
    if (alone.reason == FinishReason::kStop) continue;
    EXPECT_NEAR(log_prob(model, prompts[n], scored), alone.log_prob, 1e-3) << n;
  }
}

// MLA layers keep a latent for every token: rows of different lengths are duplicated and dropped.
TEST(BeamSearch_K3, LatentsFollowTheirHypotheses) {
  const CausalLM model = make_model(model::KDAConfig::preset("k3-tiny"), DType::kF32, 6);
  const std::int64_t vocab = model.config().vocab_size;
  std::vector<Ids> prompts;
  for (const std::int64_t length : {2, 30, 11})
    prompts.push_back(random_ids(length, vocab, static_cast<std::uint64_t>(length)));
  BeamOptions options;
  options.beam = 3;
  options.max_new_tokens = 10;
  const auto together = beam_search(model, prompts, options);
  for (std::size_t n = 0; n < prompts.size(); ++n) {
    const BeamHypothesis alone = beam_search(model, {prompts[n]}, options).front();
    EXPECT_EQ(together[n].ids, alone.ids) << n;
    EXPECT_NEAR(log_prob(model, prompts[n], alone.ids), alone.log_prob, 1e-3) << n;
  }
}

TEST(BeamSearch_Limits, AreObeyed) {
  const CausalLM model = four_tokens(1);
  BeamOptions options;
  options.max_new_tokens = 0;
  EXPECT_TRUE(beam_search(model, {{1}}, options).front().ids.empty());
  options.max_new_tokens = 3;  // nothing stops
  const BeamHypothesis cut = beam_search(model, {{1}}, options).front();
  EXPECT_EQ(cut.ids.size(), 3U);
  EXPECT_EQ(cut.reason, FinishReason::kLength);
  options.stop_ids = {0, 1, 2, 3};  // everything does
  EXPECT_TRUE(beam_search(model, {{1}}, options).front().ids.empty());
  options.beam = 0;
  EXPECT_THROW(beam_search(model, {{1}}, options), Error);
  options.beam = 2;
  EXPECT_THROW(beam_search(model, {{}}, options), Error);
  EXPECT_THROW(beam_search(model, {{4}}, options), Error);
  options.length_penalty = std::nan("");
  EXPECT_THROW(beam_search(model, {{1}}, options), Error);
}

TEST(BeamSearch_Poll, StopsTheSearch) {
  const CausalLM model = four_tokens(1);
  BeamOptions options;
  options.max_new_tokens = 100;
  int calls = 0;
  EXPECT_THROW(beam_search(model, {{1}}, options,
                           [&] {
                             if (++calls == 3) throw Error(ErrorCode::kInternal, "stop");
                           }),
               Error);
  EXPECT_EQ(calls, 3);
}

TEST(BeamSearch_NonFinite, NamesTheLayer) {
  const CausalLM model = four_tokens(1);
  for (const model::Parameter& parameter : model.parameters()) {
    if (parameter.name.find("layers.1.") != std::string::npos &&
        parameter.name.find("o_proj") != std::string::npos) {
      parameter.tensor.detach().fill_(std::nan(""));
    }
  }
  try {
    beam_search(model, {{1, 2}}, BeamOptions{});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
    EXPECT_NE(std::string(error.what()).find("layers.1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kda::test
