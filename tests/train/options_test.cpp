#include "train/options.h"

#include <gtest/gtest.h>

#include "kda/error.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using testing::error_text;

TrainOptions complete() {
  TrainOptions o;
  o.data = "data";
  o.tokenizer = "spm.model";
  o.out = "runs/x";
  o.steps.value = 800;
  return o;
}

TEST(Options, Json_RoundTripsEveryField) {
  TrainOptions o = complete();
  o.lr = 0.1 + 0.2;  // no short decimal form
  o.set = {"num_hidden_layers=6", "tie_word_embeddings=false"};
  o.sample_prompt = {"如果", "a \"quoted\" prompt\n"};
  o.eval_every = {1'000'000, PeriodUnit::kTokens};
  o.save_every = {};
  o.on_nonfinite.skips_allowed = 3;
  o.recompute = true;
  o.warmup.value = 12;
  const std::string json = options_to_json(o);
  EXPECT_EQ(options_to_json(options_from_json(json, "test")), json);
  EXPECT_EQ(options_from_json(json, "test").lr, o.lr);
}

TEST(Options, Json_UnknownKeyNamesTheNearest) {
  const std::string text = error_text(ErrorCode::kInvalidArgument,
                                      [] { options_from_json(R"({"seq_lem": 128})", "run.json"); });
  EXPECT_NE(text.find("run.json"), std::string::npos) << text;
  EXPECT_NE(text.find("seq_lem"), std::string::npos) << text;
  EXPECT_NE(text.find("seq_len"), std::string::npos) << text;
}

TEST(Options, NearestKey_KnowsWhatOtherTrainersCallThings) {
  const auto near = [](const char* key) { return nearest_key(key, Task::kPretrain); };
  EXPECT_EQ(near("learning_rate"), "lr");
  EXPECT_EQ(near("learning_rat"), "lr");
  EXPECT_EQ(near("batch_size"), "batch");
  EXPECT_EQ(near("max_grad_norm"), "clip");
  EXPECT_EQ(near("warmup_step"), "warmup");
  EXPECT_EQ(near("seq_lem"), "seq_len");
  EXPECT_EQ(near("zzzzzzzzzzzz"), "");
  // A verb's suggestions are its own options.
  EXPECT_EQ(nearest_key("mt_pair", Task::kSft), "mt_pairs");
  EXPECT_NE(near("mt_pair"), "mt_pairs");
}

TEST(Options, Json_WrongTypesAreRefused) {
  for (const char* json : {R"({"batch": "4"})", R"({"lr": "fast"})", R"({"set": "a=b"})",
                           R"({"eval_every": 5})", R"({"eval_every": "5x"})", R"({"recompute": 1})",
                           R"({"on_nonfinite": "skip:-1"})", "[]", "3"}) {
    EXPECT_THROW(options_from_json(json, "test"), Error) << json;
  }
}

TEST(Options, Check_NamesFlagAndValue) {
  const auto refused = [](const std::function<void(TrainOptions&)>& change) {
    return error_text(ErrorCode::kInvalidArgument, [&] {
      TrainOptions o = complete();
      change(o);
      check_options(o);
    });
  };
  EXPECT_NO_THROW(check_options(complete()));
  EXPECT_NE(refused([](auto& o) { o.max_tokens.value = 5; }).find("exclude each other"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.steps.value = 0; }).find("--max-tokens"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.batch = 0; }).find("--batch"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.lr = -1; }).find("got -1"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.beta2 = 1; }).find("--beta2"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.tokenizer = ""; }).find("--tokenizer"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.dtype = "fp8"; }).find("fp8"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.keep_last = 0; }).find("--keep-last"), std::string::npos);
}

TEST(Options, Check_TextThatJsonCannotHoldIsRefused) {
  const auto refused = [](const std::function<void(TrainOptions&)>& change) {
    return error_text(ErrorCode::kInvalidArgument, [&] {
      TrainOptions o = complete();
      change(o);
      check_options(o);
    });
  };
  const std::string bad = "runs/\xff";
  EXPECT_NE(refused([&](auto& o) { o.out = bad; }).find("--out: expected UTF-8"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& o) { o.data = bad; }).find("--data"), std::string::npos);
  EXPECT_NE(refused([&](auto& o) {
              o.sample_prompt = {"The", bad};
            }).find("--sample-prompt"),
            std::string::npos);
}

TEST(Options, Check_Fp16IsUnsupportedWithItsReason) {
  const std::string text = error_text(ErrorCode::kUnsupported, [] {
    TrainOptions o = complete();
    o.dtype = "fp16";
    check_options(o);
  });
  EXPECT_NE(text.find("65504"), std::string::npos) << text;
  EXPECT_NE(text.find("bf16"), std::string::npos) << text;
}

TEST(Options, MergeForResume_FreeFieldsChangeFixedOnesDoNot) {
  const TrainOptions saved = complete();
  TrainOptions given;
  given.steps.value = 1600;
  given.threads = 2;
  const TrainOptions merged = merge_for_resume(saved, given, {"steps", "threads"});
  EXPECT_EQ(merged.steps.value, 1600);
  EXPECT_EQ(merged.threads, 2);
  EXPECT_EQ(merged.data, "data");

  given.lr = 1e-3;
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { merge_for_resume(saved, given, {"lr"}); });
  EXPECT_NE(text.find("0.0003"), std::string::npos) << text;
  EXPECT_NE(text.find("0.001"), std::string::npos) << text;
  EXPECT_NO_THROW(merge_for_resume(saved, given, {"steps"}));  // lr is only a default here
}

TEST(Options, MergeForResume_AnotherKindOfBudgetReplacesTheOld) {
  TrainOptions given;
  given.max_tokens.value = 1'000'000;
  const TrainOptions merged = merge_for_resume(complete(), given, {"max_tokens"});
  EXPECT_EQ(merged.steps.value, 0);
  EXPECT_EQ(merged.max_tokens.value, 1'000'000);
}

TEST(Options, MergeForResume_OneTimeSwitchesDoNotComeBack) {
  TrainOptions saved = complete();
  saved.stop_after.value = 20;
  saved.poison_step.value = 7;
  const TrainOptions merged = merge_for_resume(saved, {}, {});
  EXPECT_EQ(merged.stop_after.value, 0);
  EXPECT_EQ(merged.poison_step.value, 0);
}

}  // namespace
}  // namespace kda::train
