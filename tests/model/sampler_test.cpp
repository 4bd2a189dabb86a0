#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "model/generate.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::Sampler;
using model::SamplingOptions;

at::Tensor row(const std::vector<float>& values) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<float>());
  return t;
}

std::set<std::int64_t> drawn(const SamplingOptions& options, const at::Tensor& logits,
                             const std::vector<std::int64_t>& history = {}) {
  const Sampler sampler(options);
  std::set<std::int64_t> ids;
  for (std::uint64_t i = 0; i < 2000; ++i)
    ids.insert(sampler.sample(logits, 0, i, history));
  return ids;
}

TEST(Sampler_MinP, LeavesOutWhatIsFarFromTheBest) {
  // Probabilities as 1 : 0.5 : 0.2 : 0.04.
  const at::Tensor logits = row({0.0F, std::log(0.5F), std::log(0.2F), std::log(0.04F)});
  SamplingOptions options;
  options.temperature = 1.0;
  EXPECT_EQ(drawn(options, logits).size(), 4U);
  options.min_p = 0.1;
  EXPECT_EQ(drawn(options, logits), (std::set<std::int64_t>{0, 1, 2}));
  options.min_p = 0.3;
  EXPECT_EQ(drawn(options, logits), (std::set<std::int64_t>{0, 1}));
  options.min_p = 1.0;
  EXPECT_EQ(drawn(options, logits), (std::set<std::int64_t>{0}));
}

TEST(Sampler_RepetitionPenalty, WeakensWhatOccurred) {
  const at::Tensor logits = row({2.0F, 1.5F, -1.0F, -1.5F});
  SamplingOptions options;  // greedy
  options.repetition_penalty = 2.0;
  const Sampler sampler(options);
  EXPECT_EQ(sampler.sample(logits, 0, 0), 0);
  const std::vector<std::int64_t> history{0, 0, 0, 99};  // once however often; unknown ids pass
  EXPECT_EQ(sampler.sample(logits, 0, 0, history), 1);
  const std::vector<std::int64_t> both{0, 1};  // 1.0 and 0.75: the order stays
  EXPECT_EQ(sampler.sample(logits, 0, 0, both), 0);
  // A negative logit is multiplied, so it falls too.
  const std::vector<std::int64_t> negative{2};
  EXPECT_EQ(Sampler(options).sample(row({-2.0F, -2.5F, -1.5F, -4.0F}), 0, 0, negative), 0);
  options.repetition_window = 1;
  const std::vector<std::int64_t> old{0, 3};
  EXPECT_EQ(Sampler(options).sample(logits, 0, 0, old), 0);  // 0 lies outside the window
}

TEST(Sampler_NewOptions, AreChecked) {
  const auto error_of = [](const SamplingOptions& options) {
    try {
      options.validate();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {-0.1, 1.1, nan}) {
    SamplingOptions options;
    options.min_p = bad;
    EXPECT_EQ(error_of(options).rfind("min_p: expected", 0), 0U) << bad;
  }
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    SamplingOptions options;
    options.repetition_penalty = bad;
    EXPECT_EQ(error_of(options).rfind("repetition_penalty: expected", 0), 0U) << bad;
  }
  SamplingOptions options;
  options.repetition_window = -1;
  EXPECT_EQ(error_of(options).rfind("repetition_window: expected", 0), 0U);
}

// Token by token as in one call, each with its own history.
TEST(Generate_RepetitionPenalty, CountsPromptAndOutput) {
  const model::CausalLM model = make_model(small_config(), DType::kF32, 8);
  model::GenerateOptions options;
  options.max_new_tokens = 24;
  options.sampling.repetition_penalty = 1e6;  // an id that occurred is never the best again
  const std::vector<std::int64_t> prompt = random_ids(10, 61, 3);
  const auto ids = model::generate(model, {prompt}, options).front().ids;
  std::set<std::int64_t> seen(prompt.begin(), prompt.end());
  for (const std::int64_t id : ids)
    EXPECT_TRUE(seen.insert(id).second) << id;
  options.history = {{}, {}};
  EXPECT_THROW(model::generate(model, {prompt}, options), Error);
}

}  // namespace
}  // namespace kda::test
