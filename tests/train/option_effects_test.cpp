#include "train/option_effects.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kda/error.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using testing::error_text;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tiny_request;

/// The refusal of options of which the user named `key`; "" when they are fine.
std::string refusal(const std::string& key, const std::function<void(TrainOptions&)>& change,
                    TrainOptions o = {}) {
  change(o);
  try {
    refuse_without_effect(without_effect(o), o, {key}, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(OptionEffects, EachNamesItsFlagAndTheReason) {
  struct Case {
    const char* key;
    std::function<void(TrainOptions&)> change;
    const char* reason;
  };
  const Case cases[] = {
      {"momentum", [](auto& o) { o.momentum = 0.9; }, "--optimizer adamw"},
      {"momentum", [](auto&) {}, "--optimizer adamw"},  // the default, but asked for
      {"qk_clip", [](auto& o) { o.qk_clip = 30; }, "--optimizer adamw"},
      {"decay", [](auto& o) { o.decay.value = 50; }, "--schedule cosine"},
      {"lr_floor",
       [](auto& o) {
         o.schedule = "wsd";
         o.decay.value = 0;
       },
       "--decay 0"},
      {"attnres_block_size", [](auto& o) { o.attnres_block_size = 2; }, "--attnres block"},
      {"attnres_block_size",
       [](auto& o) {
         o.attnres_block_size = 2;
         o.attnres = "off";
       },
       "--attnres off"},
      {"attnres_block_size",
       [](auto& o) {
         o.attnres_block_size = 2;
         o.attnres = "full";
       },
       "--attnres full"},
      {"sample_prompt", [](auto& o) { o.sample_every = {}; }, "--sample-every off"},
      {"sample_tokens", [](auto& o) { o.sample_every = {}; }, "--sample-every off"},
      {"sample_every", [](auto& o) { o.sample_tokens = 0; }, "--sample-tokens 0"},
      {"eval_tokens", [](auto& o) { o.eval_every = {}; }, "--eval-every off"},
  };
  for (const Case& c : cases) {
    const std::string text = refusal(c.key, c.change);
    EXPECT_NE(text.find(flag_of(c.key) + ": has no effect"), std::string::npos) << c.key << text;
    EXPECT_NE(text.find(c.reason), std::string::npos) << c.key << ": " << text;
  }
}

TEST(OptionEffects, OfFineTuning) {
  const auto sft = [](const char* key, const std::function<void(TrainOptions&)>& change) {
    return refusal(key, change, sft_defaults());
  };
  const auto no_eval = [](auto& o) { o.eval_every = {}; };
  EXPECT_NE(sft("mt_pairs", no_eval).find("--eval-every off"), std::string::npos);
  EXPECT_NE(sft("mt_tokens", no_eval).find("--eval-every off"), std::string::npos);
  const auto no_pairs = [](auto& o) {
    o.mt_pairs = 0;
    o.src = "a";
    o.ref = "b";
  };
  EXPECT_NE(sft("src", no_pairs).find("--mt-pairs 0"), std::string::npos);
  EXPECT_NE(sft("mt_tokens", no_pairs).find("--mt-pairs 0"), std::string::npos);
  EXPECT_NE(sft("sample_prompt", [](auto&) {}).find("--sample-every off"), std::string::npos);
  EXPECT_EQ(sft("mt_pairs", [](auto&) {}), "");
}

TEST(OptionEffects, WhatWorksOrAsksForNothingIsFine) {
  EXPECT_EQ(refusal("momentum", [](auto& o) { o.optimizer = "muon"; }), "");
  EXPECT_EQ(refusal("qk_clip", [](auto& o) { o.optimizer = "muon"; }), "");
  EXPECT_EQ(refusal("qk_clip", [](auto& o) { o.qk_clip = 0; }), "");
  EXPECT_EQ(refusal("decay",
                    [](auto& o) {
                      o.schedule = "wsd";
                      o.decay.value = 50;
                    }),
            "");
  EXPECT_EQ(refusal("lr_floor", [](auto&) {}), "");
  EXPECT_EQ(refusal("sample_tokens",
                    [](auto& o) {
                      o.sample_every = {};
                      o.sample_tokens = 0;
                    }),
            "");
  // Not named: defaults lie around unused in every run.
  TrainOptions o;
  EXPECT_NO_THROW(refuse_without_effect(without_effect(o), o, {"lr", "batch"}, {}));
}

TEST(OptionEffects, AFileIsWarnedOfOnlyWhereItDiffersFromTheDefault) {
  TrainOptions o;
  EXPECT_TRUE(refuse_without_effect(without_effect(o), o, {}, {"momentum", "decay"}).empty());
  o.momentum = 0.8;
  o.mt_pairs = 7;  // of the other verb
  const auto warnings = refuse_without_effect(without_effect(o), o, {}, {"momentum", "mt_pairs"});
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("momentum = 0.8"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("kda sft"), std::string::npos) << warnings[1];
}

TEST(OptionEffects, OfDataModelAndLength) {
  const auto refused = [](const char* key, const std::function<void(TrainOptions&)>& change,
                          const std::function<void(RunFacts&)>& fact) {
    TrainOptions o;
    change(o);
    RunFacts facts;
    facts.has_heldout = facts.has_translations = true;
    facts.num_mla_layers = 1;
    facts.total_steps = 10;
    EXPECT_FALSE(without_effect(o, facts).contains(key)) << key;
    fact(facts);
    return error_text(ErrorCode::kInvalidArgument,
                      [&] { refuse_without_effect(without_effect(o, facts), o, {key}, {}); });
  };
  const auto nothing = [](TrainOptions&) {};
  EXPECT_NE(refused("heldout_share", nothing, [](auto& f) { f.packed_data = true; }).find("pack"),
            std::string::npos);
  EXPECT_NE(refused(
                "cache", [](auto& o) { o.cache = "c"; }, [](auto& f) { f.packed_data = true; })
                .find("tokens are made"),
            std::string::npos);
  EXPECT_NE(refused("heldout_share", nothing, [](auto& f) { f.has_heldout_file = true; })
                .find("held-out file"),
            std::string::npos);
  EXPECT_NE(refused("eval_tokens", nothing, [](auto& f) { f.has_heldout = false; })
                .find("--heldout-share"),
            std::string::npos);
  EXPECT_NE(
      refused("eval_every", nothing, [](auto& f) { f.has_heldout = f.has_translations = false; })
          .find("--heldout-share"),
      std::string::npos);
  EXPECT_NE(refused("mt_pairs", nothing, [](auto& f) { f.has_translations = false; }).find("--src"),
            std::string::npos);
  EXPECT_NE(refused("qk_clip", nothing, [](auto& f) { f.num_mla_layers = 0; }).find("MLA"),
            std::string::npos);
  EXPECT_NE(refused(
                "stop_after", [](auto& o) { o.stop_after.value = 10; },
                [](auto& f) { f.total_steps = 9; })
                .find("9 steps"),
            std::string::npos);
  EXPECT_NE(refused(
                "poison_step", [](auto& o) { o.poison_step.value = 2; },
                [](auto& f) { f.total_steps = 1; })
                .find("1 step "),
            std::string::npos);
  EXPECT_NE(refused(
                "profile", [](auto& o) { o.profile = 4; }, [](auto& f) { f.total_steps = 9; })
                .find("10 steps"),
            std::string::npos);
}

TEST(OptionEffects, ARunRefusesBeforeItMakesAnything) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 3);
  request.options.momentum = 0.9;
  request.given_keys = {"momentum"};
  error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));

  request = tiny_request(folder / "run", 3);
  request.options.optimizer = "muon";
  request.given_keys = {"optimizer", "qk_clip"};  // the tiny model has no MLA layer
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("--qk-clip"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));

  request.given_keys = {"optimizer"};
  request.file_keys = {"qk_clip"};
  request.options.qk_clip = 30;
  train(request, reporter);
  ASSERT_EQ(reporter.warnings.size(), 1u);
  EXPECT_NE(reporter.warnings[0].find("qk_clip = 30"), std::string::npos) << reporter.warnings[0];
}

}  // namespace
}  // namespace kda::train
