#include "view/metrics.h"

#include "io/json.h"
#include "view_test_support.h"

namespace kda::view {
namespace {

using io::Json;
using test::expect_error;
using test::put;
using test::TempFolder;

TEST(Metrics, EveryNumber_IsACurveOverTheStep) {
  const TempFolder folder;
  put(folder / "m.jsonl",
      "{\"kind\":\"step\",\"step\":1,\"loss\":3.5,\"lr\":0.1}\n"
      "{\"kind\":\"step\",\"step\":2,\"loss\":\"nan\",\"note\":\"x\"}\n"
      "{\"kind\":\"eval\",\"step\":2,\"heldout_loss\":3}\n"
      "{\"kind\":\"sample\",\"step\":2,\"prompt\":\"<b>\",\"text\":\"t\"}\n"
      "{\"kind\":\"step\",\"step\":3,\"lo");  // cut short by a kill
  const Json metrics = Json::parse(metrics_json(folder / "m.jsonl"));
  EXPECT_EQ(metrics["records"], 4);
  ASSERT_EQ(metrics["series"].size(), 3U);
  EXPECT_EQ(metrics["series"][0]["name"], "eval.heldout_loss");
  const Json& loss = metrics["series"][1];
  EXPECT_EQ(loss["name"], "step.loss");
  EXPECT_EQ(loss["x"], Json::parse("[1, 2]"));
  EXPECT_EQ(loss["y"], Json::parse("[3.5, null]"));
  EXPECT_TRUE(loss["low"].is_null());
  EXPECT_EQ(metrics["samples"], Json::parse(R"([{"step": 2, "prompt": "<b>", "text": "t"}])"));
}

TEST(Metrics, LongRun_IsJoinedWithItsRange) {
  const TempFolder folder;
  std::string text;
  for (int step = 1; step <= 4000; ++step) {
    text += "{\"kind\":\"step\",\"step\":" + std::to_string(step) +
            ",\"loss\":" + std::to_string(step % 2) + "}\n";
  }
  put(folder / "m.jsonl", text);
  const Json metrics = Json::parse(metrics_json(folder / "m.jsonl"));
  const Json& loss = metrics["series"][0];
  EXPECT_EQ(loss["points"], 4000);
  EXPECT_EQ(loss["block"], 2);
  EXPECT_EQ(loss["y"].size(), 2000U);
  EXPECT_EQ(loss["x"][0], 2);
  EXPECT_EQ(loss["y"][0], 0.5);
  EXPECT_EQ(loss["low"][0], 0);
  EXPECT_EQ(loss["high"][0], 1);
}

TEST(Metrics, NothingToShow_IsSaid) {
  const TempFolder folder;
  const auto note_of = [&](const std::string& log) {
    put(folder / "m.jsonl", log);
    return Json::parse(metrics_json(folder / "m.jsonl"))["note"];
  };
  EXPECT_EQ(note_of(""), "no points yet: no whole line in the log");
  EXPECT_EQ(note_of("{\"kind\":\"step\",\"st"), "no points yet: no whole line in the log");
  EXPECT_EQ(note_of("{\"kind\":\"start\"}\n{\"kind\":\"step\",\"step\":1,\"why\":\"x\"}\n"),
            "no points yet: none of 2 records has a step and a number");
  EXPECT_TRUE(note_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n").is_null());
  EXPECT_TRUE(note_of("{\"kind\":\"sample\",\"step\":1,\"text\":\"x\"}\n").is_null());
}

TEST(Metrics, DamagedLine_IsNamed) {
  const TempFolder folder;
  put(folder / "m.jsonl", "{\"step\":1}\nnonsense\n{\"step\":2}\n");
  expect_error(ErrorCode::kIo, {"m.jsonl", "2"}, [&] { metrics_json(folder / "m.jsonl"); });
  expect_error(ErrorCode::kIo, {"gone.jsonl"}, [&] { metrics_json(folder / "gone.jsonl"); });
}

}  // namespace
}  // namespace kda::view
