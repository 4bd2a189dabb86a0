#include "train/units.h"

#include <gtest/gtest.h>

#include "kda/error.h"
#include "train/fixture.h"
#include "train/running_stats.h"

namespace kda::train {
namespace {

TEST(Units, ParseCount_AcceptsPlainAndSuffixed) {
  EXPECT_EQ(parse_count("800", "n"), 800);
  EXPECT_EQ(parse_count("64k", "n"), 64'000);
  EXPECT_EQ(parse_count("8.2M", "n"), 8'200'000);
  EXPECT_EQ(parse_count("8.192M", "n"), 8'192'000);
  EXPECT_EQ(parse_count("1G", "n"), 1'000'000'000);
  EXPECT_EQ(parse_count("1B", "n"), 1'000'000'000);
  EXPECT_EQ(parse_count(" 1 M ", "n"), 1'000'000);
  EXPECT_EQ(parse_count("0", "n"), 0);
}

TEST(Units, ParseCount_RefusesTheRest) {
  for (const char* text : {"", "k", "-1", "1.5", "1x", "1kk", "nan", "inf", "1e400", "12 34",
                           "0x10", "1,000", "99999999999G"}) {
    EXPECT_THROW(parse_count(text, "n"), Error) << text;
  }
  const std::string message =
      testing::error_text(ErrorCode::kInvalidArgument, [] { parse_count("ten", "--steps"); });
  EXPECT_NE(message.find("--steps"), std::string::npos) << message;
  EXPECT_NE(message.find("'ten'"), std::string::npos) << message;
}

TEST(Units, ParsePeriod_UnitsAndRoundTrip) {
  EXPECT_EQ(parse_period("200", "p"), (Period{200, PeriodUnit::kUpdates}));
  EXPECT_EQ(parse_period("200u", "p"), (Period{200, PeriodUnit::kUpdates}));
  EXPECT_EQ(parse_period("1Mt", "p"), (Period{1'000'000, PeriodUnit::kTokens}));
  EXPECT_EQ(parse_period("1M t", "p"), (Period{1'000'000, PeriodUnit::kTokens}));
  EXPECT_EQ(parse_period("2e", "p"), (Period{2, PeriodUnit::kEpochs}));
  EXPECT_EQ(parse_period("off", "p"), Period{});
  EXPECT_EQ(parse_period("0t", "p"), Period{});
  for (const char* text : {"200u", "1000000t", "2e", "off"}) {
    EXPECT_EQ(to_string(parse_period(text, "p")), text);
  }
  for (const char* text : {"", "u", "-5u", "5x", "1.5u", "5ut"}) {
    EXPECT_THROW(parse_period(text, "p"), Error) << text;
  }
}

TEST(Units, ParseBudget_TakesItsOwnUnitOnly) {
  EXPECT_EQ(parse_budget("500u", 'u', "--steps"), 500);
  EXPECT_EQ(parse_budget("2k", 'u', "--steps"), 2000);
  EXPECT_EQ(parse_budget("2Mt", 't', "--max-tokens"), 2'000'000);
  EXPECT_EQ(parse_budget("2M t", 't', "--max-tokens"), 2'000'000);
  EXPECT_EQ(parse_budget("3e", 'e', "--epochs"), 3);
  EXPECT_EQ(parse_budget("7", 0, "--limit"), 7);
  EXPECT_THROW(parse_budget("7u", 0, "--limit"), Error);
  EXPECT_THROW(parse_budget("u", 'u', "--steps"), Error);
  const std::string text =
      testing::error_text(ErrorCode::kInvalidArgument, [] { parse_budget("2Mt", 'u', "--steps"); });
  EXPECT_NE(text.find("optimizer steps"), std::string::npos) << text;
  EXPECT_NE(text.find("'2Mt'"), std::string::npos) << text;
}

TEST(Units, IsDue_FiresOncePerPeriodInEachUnit) {
  const auto fires = [](const Period& period, std::int64_t tokens_per_step) {
    std::vector<std::int64_t> at;
    for (std::int64_t step = 1; step <= 12; ++step) {
      const Position before{step - 1, (step - 1) * tokens_per_step, 100};
      const Position now{step, step * tokens_per_step, 100};
      if (is_due(period, before, now)) at.push_back(step);
    }
    return at;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(fires({4, PeriodUnit::kUpdates}, 30), (Steps{4, 8, 12}));
  EXPECT_EQ(fires({100, PeriodUnit::kTokens}, 30), (Steps{4, 7, 10}));
  EXPECT_EQ(fires({1, PeriodUnit::kEpochs}, 30), (Steps{4, 7, 10}));
  EXPECT_EQ(fires({2, PeriodUnit::kEpochs}, 30), (Steps{7}));
  EXPECT_EQ(fires({10, PeriodUnit::kTokens}, 30).size(), 12u);  // many per step is still one
  EXPECT_TRUE(fires({}, 30).empty());
  EXPECT_FALSE(is_due({1, PeriodUnit::kEpochs}, {0, 0, 0}, {9, 900, 0}));  // unknown epoch length
  // 2^52 epochs of 2^12 tokens: a product of 2^64.
  const std::int64_t many = std::int64_t{1} << 52;
  EXPECT_FALSE(is_due({many, PeriodUnit::kEpochs}, {0, 0, 4096}, {9, 900, 4096}));
}

TEST(Units, ShortForms) {
  EXPECT_EQ(short_count(7), "7");
  EXPECT_EQ(short_count(1234), "1.23k");
  EXPECT_EQ(short_count(8'200'000), "8.20M");
  EXPECT_EQ(short_count(999'600), "1.00M");
  EXPECT_EQ(short_count(123'456), "123k");
  EXPECT_EQ(short_bytes(1181116006), "1.1G");
  EXPECT_EQ(short_duration(4), "4s");
  EXPECT_EQ(short_duration(65), "1m05s");
  EXPECT_EQ(short_duration(3700), "1h01m");
  EXPECT_EQ(short_duration(200000), "2d07h");
  EXPECT_EQ(short_duration(-1), "?");
}

TEST(Stats, ZScore_AgainstTheWindowBefore) {
  RunningStats stats;
  for (int i = 0; i < 7; ++i) {
    stats.push(i % 2);
    EXPECT_FALSE(stats.z_score(1).has_value());
  }
  stats.push(1);  // 0 1 0 1 0 1 0 1: mean 1/2, deviation 1/2
  ASSERT_TRUE(stats.z_score(2).has_value());
  EXPECT_DOUBLE_EQ(*stats.z_score(2), 3.0);
  RunningStats flat;
  for (int i = 0; i < 20; ++i)
    flat.push(2.5);
  EXPECT_FALSE(flat.z_score(3).has_value());
  EXPECT_DOUBLE_EQ(flat.ema(), 2.5);
}

TEST(Stats, Restored_ContinuesBitByBit) {
  RunningStats a;
  for (int i = 0; i < 300; ++i)
    a.push(1.0 / (i + 1));
  RunningStats b;
  b.restore(a.state());
  EXPECT_EQ(a.state().window.size(), RunningStats::kWindow);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(*a.z_score(0.37), *b.z_score(0.37));
    a.push(0.1 * i);
    b.push(0.1 * i);
    EXPECT_EQ(a.ema(), b.ema());
  }
}

}  // namespace
}  // namespace kda::train
