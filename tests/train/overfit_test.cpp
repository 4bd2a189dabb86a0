#include "train/overfit.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "kda/error.h"
#include "train/fixture.h"
#include "train/signals.h"

namespace kda::train {
namespace {

TEST(Overfit, TwoSentencesAreLearnedAndReproduced) {
  testing::ScratchFolder scratch;
  OverfitOptions options;
  options.backend = "auto";
  options.target_loss = 0.02;
  std::vector<double> losses;
  const OverfitResult result =
      overfit(options, [&](const OverfitStep& step) { losses.push_back(step.loss); });
  RecordProperty("loss", std::to_string(result.last_loss));
  EXPECT_TRUE(result.reached) << result.last_loss;
  EXPECT_NEAR(result.first_loss, std::log(258.0), 0.5);
  EXPECT_EQ(static_cast<std::int64_t>(losses.size()), result.steps);
  EXPECT_TRUE(result.reproduced) << result.continuations[0] << " / " << result.continuations[1];
}

TEST(Overfit, ReferenceBackendTakesTheSameFirstSteps) {
  testing::ScratchFolder scratch;
  OverfitOptions options;
  options.max_steps = 3;
  options.sentences = {"同一件事", "the same thing"};
  std::vector<double> losses[2];
  const char* backends[] = {"ref", "auto"};
  for (int i = 0; i < 2; ++i) {
    options.backend = backends[i];
    const OverfitResult result =
        overfit(options, [&](const OverfitStep& step) { losses[i].push_back(step.loss); });
    EXPECT_FALSE(result.reached);
  }
  ASSERT_EQ(losses[0].size(), losses[1].size());
  for (std::size_t s = 0; s < losses[0].size(); ++s) {
    EXPECT_NEAR(losses[0][s], losses[1][s], 1e-3);
  }
}

TEST(Overfit, LimitsAndStopRequests) {
  testing::ScratchFolder scratch;
  OverfitOptions options;
  options.backend = "auto";
  options.max_steps = 1;
  EXPECT_FALSE(overfit(options).reached);
  options.sentences = {""};
  EXPECT_THROW(overfit(options), Error);
  options.sentences.clear();
  request_stop(SIGTERM);
  EXPECT_THROW(overfit(options), Interrupted);
}

}  // namespace
}  // namespace kda::train
