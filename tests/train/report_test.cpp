#include "train/report.h"

#include <gtest/gtest.h>

namespace kda::train {
namespace {

TEST(Report, ConsoleLine_HasEverythingInOneLine) {
  StepRecord r;
  r.step = 120;
  r.total_steps = 800;
  r.tokens = 122880;
  r.total_tokens = 819200;
  r.loss = 5.2314;
  r.loss_ema = 5.3102;
  r.loss_z = 0.31;
  r.grad_norm = 0.82;
  r.grad_z = -0.12;
  r.lr = 3e-4;
  r.step_ms = 412;
  r.tokens_per_second = 2485;
  r.resident_bytes = 1181116006;
  r.epoch = 0.14;
  r.eta_seconds = 280;
  EXPECT_EQ(console_line(r),
            "step 120/800 | tok 123k/819k | loss 5.2314 ema 5.3102 (z +0.3) | gn 0.82 (z -0.1) | "
            "lr 3.00e-04 | 412 ms | 2.48k tok/s | rss 1.1G | ep 0.14 | eta 4m40s");
  r.loss_z.reset();
  EXPECT_EQ(console_line(r).find("z +0.3"), std::string::npos);
}

TEST(Report, ConsoleLine_SkippedSaysWhy) {
  StepRecord r;
  r.step = 7;
  r.total_steps = 20;
  r.skipped = true;
  r.why_skipped = "loss is nan (skip 1 of 3)";
  EXPECT_NE(console_line(r).find("SKIPPED: loss is nan (skip 1 of 3)"), std::string::npos);
  EXPECT_EQ(console_line(r).find("ema"), std::string::npos);
  EXPECT_FALSE(to_json(r).contains("loss"));
}

TEST(Report, Json_TimingKeysAreTheOnlyOnesThatMayDiffer) {
  StepRecord a;
  a.loss = 1.5;
  StepRecord b = a;
  b.step_ms = 99;
  b.tokens_per_second = 5;
  b.resident_bytes = 7;
  b.eta_seconds = 3;
  const io::Json ja = to_json(a);
  const io::Json jb = to_json(b);
  ASSERT_EQ(ja.size(), jb.size());
  for (const auto& item : ja.items()) {
    if (!is_timing_key(item.key())) {
      EXPECT_EQ(item.value(), jb.at(item.key())) << item.key();
    }
  }
}

}  // namespace
}  // namespace kda::train
