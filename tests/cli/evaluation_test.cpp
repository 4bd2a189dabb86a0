#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/world.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/sha256.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::fresh_folder;
using testing::kda;
using testing::mentions;
using testing::ProgramResult;
using testing::trained_run;
using testing::write_text;

const std::vector<std::vector<std::string>> kPairs = {
    {"Open the file in the text editor.", "在文本编辑器中打开该文件。", "ui"},
    {"The small cat sleeps on the mountain.", "小猫在山上睡觉，睡得很香。", "narrative"},
    {"Our teacher walks over that bridge.", "我们的老师走过那座桥。", "narrative"},
    {"Nobody remembers the name of the river.", "没有人记得这条河的名字。", "docs"},
    {"She reads a letter by the window.", "她坐在窗边读一封信。", "docs"},
};

// A corpus folder with one frozen set of five pairs, and the same lines as files of one's own.
const fs::path& set_folder() {
  static const fs::path folder = [] {
    const fs::path path = fresh_folder("sets");
    fs::create_directories(path / "eval");
    std::string en;
    std::string zh;
    std::string meta;
    for (const auto& pair : kPairs) {
      en += pair[0] + "\n";
      zh += pair[1] + "\n";
      meta += io::to_hex(io::sha256(pair[0] + "\t" + pair[1])) + "\t" + pair[2] + "\tworld\n";
    }
    write_text(path / "eval/test.en", en);
    write_text(path / "eval/test.zh", zh);
    write_text(path / "eval/test.meta", meta);
    return path;
  }();
  return folder;
}

std::string line_file(const char* lang) {
  return (set_folder() / "eval" / (std::string("test.") + lang)).string();
}

TEST(Evaluation, Mt_APretrainedModelScoresNothingAndTheReportSaysWhy) {
  const fs::path out = fresh_folder("mt") / "out";
  const std::vector<std::string> words{"eval",
                                       "mt",
                                       "--ckpt",
                                       trained_run().string(),
                                       "--data",
                                       set_folder().string(),
                                       "--out",
                                       out.string(),
                                       "--max-new-tokens",
                                       "12",
                                       "--device",
                                       "cpu"};
  const ProgramResult result = kda(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, "(pretrained, step 30)")) << result.out;
  EXPECT_TRUE(mentions(result.out, "never seen a translation prompt")) << result.out;
  EXPECT_TRUE(mentions(result.out, "test.en2zh")) << result.out;
  EXPECT_TRUE(mentions(result.out, "tok:zh")) << result.out;
  EXPECT_TRUE(mentions(result.out, "tok:13a")) << result.out;
  const io::Json report = io::read_json_file(out / "report.json");
  ASSERT_EQ(report.at("sections").size(), 2U);
  for (const io::Json& section : report.at("sections")) {
    EXPECT_EQ(section.at("success_rate"), 0.0);
    EXPECT_EQ(section.at("sentences"), 5);
    EXPECT_EQ(section.at("strata").size(), 3U);
    EXPECT_TRUE(section.contains("bleu"));
    EXPECT_EQ(section.at("translates"), false);
  }
  EXPECT_EQ(report.at("stage"), "pretrained");
  EXPECT_TRUE(mentions(io::read_file(out / "report.html"), "小猫在山上睡觉"));
  EXPECT_FALSE(mentions(io::read_file(out / "report.html"), "<script"));
  const std::string hypotheses = io::read_file(out / "test.en2zh.hyp.txt");
  EXPECT_EQ(std::count(hypotheses.begin(), hypotheses.end(), '\n'), 5);
  // Twice the same, and the same without batches.
  ASSERT_EQ(
      kda({"eval", "mt", "--ckpt", trained_run().string(), "--data", set_folder().string(), "--out",
           (out / "again").string(), "--max-new-tokens", "12", "--device", "cpu", "--batch", "1"})
          .exit_code,
      0);
  EXPECT_EQ(io::read_file(out / "again/test.en2zh.hyp.txt"), hypotheses);
}

TEST(Evaluation, Mt_BeamAndDirectionAndLimit) {
  const ProgramResult result =
      kda({"eval", "mt", "--ckpt", trained_run().string(), "--data", set_folder().string(), "--set",
           "test", "--direction", "zh2en", "--beam", "3", "--limit", "2", "--max-new-tokens", "6",
           "--device", "cpu", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const io::Json report = io::parse_json(result.out, "stdout");  // nothing else is printed
  ASSERT_EQ(report.at("sections").size(), 1U);
  EXPECT_EQ(report.at("sections").at(0).at("direction"), "zh2en");
  EXPECT_EQ(report.at("sections").at(0).at("sentences"), 2);
  EXPECT_EQ(report.at("decoding").at("beam"), 3);
  EXPECT_TRUE(mentions(report.at("notes").dump(), "Only 2 sentences"));
}

// Scoring the references themselves: what a perfect system gets.
TEST(Evaluation, Mt_ReferencesScoreAHundredInBothLanguages) {
  for (const auto& [source, target] : {std::pair("en", "zh"), std::pair("zh", "en")}) {
    const std::vector<std::string> words{"eval",          "mt",
                                         "--hyp",         line_file(target),
                                         "--src",         line_file(source),
                                         "--ref",         line_file(target),
                                         "--target-lang", target,
                                         "--json"};
    const ProgramResult result = kda(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const io::Json section = io::parse_json(result.out, "stdout").at("sections").at(0);
    EXPECT_NEAR(section.at("bleu").get<double>(), 100.0, 1e-9);
    EXPECT_NEAR(section.at("chrf").get<double>(), 100.0, 1e-9);
    EXPECT_NEAR(section.at("sacrebleu_chrf").get<double>(), 100.0, 1e-9);
    EXPECT_EQ(section.at("success_rate"), 1.0);
    EXPECT_EQ(section.at("language_match_rate"), 1.0);
    EXPECT_TRUE(mentions(section.at("bleu_signature"),
                         std::string("tok:") + (target[0] == 'z' ? "zh" : "13a")));
    EXPECT_EQ(kda(words).out, result.out);  // nothing is drawn at random
  }
}

TEST(Evaluation, Mt_UnequalCountsAreAnErrorThatNamesBoth) {
  const fs::path folder = fresh_folder("unequal");
  write_text(folder / "four", "一\n二\n三\n四\n");
  const std::string four = (folder / "four").string();
  expect_error(kda({"eval", "mt", "--hyp", four, "--src", line_file("en"), "--ref", line_file("zh"),
                    "--target-lang", "zh"}),
               2, "eval mt", {"--hyp", "expected 5 lines", "got 4"});
  expect_error(kda({"eval", "mt", "--ckpt", trained_run().string(), "--src", line_file("en"),
                    "--ref", four, "--target-lang", "zh"}),
               2, "eval mt", {"got 5 in", "and 4 in"});
  // Empty hypotheses are lines too.
  write_text(folder / "empty", "\n\n\n\n\n");
  const ProgramResult result =
      kda({"eval", "mt", "--hyp", (folder / "empty").string(), "--src", line_file("en"), "--ref",
           line_file("zh"), "--target-lang", "zh", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const io::Json section = io::parse_json(result.out, "stdout").at("sections").at(0);
  EXPECT_EQ(section.at("empty_rate"), 1.0);
  EXPECT_EQ(section.at("bleu"), 0.0);
}

TEST(Evaluation, Mt_UsageErrors) {
  const std::string run = trained_run().string();
  const std::string data = set_folder().string();
  expect_error(kda({"eval", "mt", "--ckpt", run}), 2, "eval mt", {"--data", "--src"});
  expect_error(kda({"eval", "mt", "--data", data}), 2, "eval mt", {"--ckpt is required"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--src", line_file("en")}), 2, "eval mt",
               {"--ref is missing"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--data", data, "--set", "nope"}), 2, "eval mt",
               {"--set", "expected one of test"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--data", data, "--direction", "en-zh"}), 2,
               "eval mt", {"--direction", "en2zh"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--src", line_file("en"), "--ref", line_file("zh"),
                    "--target-lang", "de"}),
               2, "eval mt", {"--target-lang", "en or zh"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--data", data, "--beam", "0"}), 2, "eval mt",
               {"--beam", "from 1 to 64"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--data", data, "--length-penalty", "2"}), 2,
               "eval mt", {"--length-penalty: has no effect", "--beam 1"});
  expect_error(kda({"eval", "mt", "--hyp", line_file("zh"), "--src", line_file("en"), "--ref",
                    line_file("zh"), "--target-lang", "zh", "--beam", "4"}),
               2, "eval mt", {"--beam: has no effect", "--hyp"});
  expect_error(kda({"eval", "mt", "--ckpt", run, "--data", testing::corpus().string()}), 1,
               "eval mt", {"evaluation sets"});
}

TEST(Evaluation, Mt_WithoutSacreBleuSaysWhatToInstall) {
  const fs::path fake = fresh_folder("no-sacrebleu");
  write_text(fake / "sacrebleu.py", "raise ImportError('not here')\n");
  const std::vector<std::string> words{
      "eval",          "mt",    "--hyp",         line_file("zh"), "--src",
      line_file("en"), "--ref", line_file("zh"), "--target-lang", "zh"};
  expect_error(kda(words, {"", {{"PYTHONPATH", fake.string()}}}), 1, "eval mt",
               {"pip install sacrebleu", "--no-bleu"});
  expect_error(kda(words, {"", {{"KDA_PYTHON", "/nonexistent/python"}}}), 1, "eval mt",
               {"/nonexistent/python", "KDA_PYTHON"});
  std::vector<std::string> without = words;
  without.push_back("--no-bleu");
  const ProgramResult result = kda(without, {"", {{"KDA_PYTHON", "/nonexistent/python"}}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, "100.00")) << result.out;  // chrF is our own
  EXPECT_FALSE(mentions(result.out, "tok:zh"));
}

// Before anything is translated.
TEST(Evaluation, Mt_OutThatIsAFileIsRefused) {
  const fs::path file = fresh_folder("mt-out") / "report";
  write_text(file, "precious");
  expect_error(kda({"eval", "mt", "--ckpt", trained_run().string(), "--src", line_file("en"),
                    "--ref", line_file("zh"), "--target-lang", "zh", "--no-bleu", "--device", "cpu",
                    "--out", file.string()}),
               1, "eval mt", {"--out", file.string(), "file"});
  EXPECT_EQ(io::read_file(file), "precious");
}

// A stop is answered within a token and leaves no half report.
TEST(Evaluation, Mt_TermStopsItAndLeavesNothing) {
  const fs::path folder = fresh_folder("mt-term");
  std::string en;
  std::string zh;
  for (int i = 0; i < 100000; ++i) {  // minutes: the first progress line comes after ten seconds
    en += kPairs[static_cast<std::size_t>(i) % kPairs.size()][0] + "\n";
    zh += kPairs[static_cast<std::size_t>(i) % kPairs.size()][1] + "\n";
  }
  write_text(folder / "en", en);
  write_text(folder / "zh", zh);
  testing::Program program({"eval", "mt", "--ckpt", trained_run().string(), "--src",
                            (folder / "en").string(), "--ref", (folder / "zh").string(),
                            "--target-lang", "zh", "--batch", "1", "--device", "cpu", "--no-bleu",
                            "--out", (folder / "out").string()});
  ASSERT_TRUE(program.wait_for("translating en.en2zh")) << program.finish(1).err;
  program.send(SIGTERM);
  const ProgramResult result = program.finish(30);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(mentions(result.err, "stopped by SIGTERM")) << result.err;
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Evaluation, Ppl_CountsExactlyAndPrintsOneObject) {
  const auto measure = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{
        "eval",     "ppl", "--ckpt", trained_run().string(), "--text", testing::corpus().string(),
        "--device", "cpu", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = kda(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return io::parse_json(result.out, "stdout");
  };
  const io::Json all = measure({});
  EXPECT_EQ(all.at("targets"), all.at("available_targets"));
  for (const std::int64_t count : {1, 100, 257}) {
    const io::Json part = measure({"--max-tokens", std::to_string(count), "--batch", "4"});
    EXPECT_EQ(part.at("targets"), count);
    EXPECT_LT(part.at("bytes").get<std::int64_t>(), all.at("bytes").get<std::int64_t>());
  }
  const io::Json again = measure({"--batch", "1", "--seq-len", "512"});
  EXPECT_NEAR(again.at("loss").get<double>(), all.at("loss").get<double>(), 1e-5);
  EXPECT_NEAR(std::log(all.at("perplexity").get<double>()), all.at("loss").get<double>(), 1e-9);
}

TEST(Evaluation, ExportFlores_MakesASetThatMtReads) {
  const fs::path folder = fresh_folder("flores");
  std::string rows;
  for (const auto& pair : kPairs) {
    rows +=
        R"({"sentence_eng_Latn": ")" + pair[0] + R"(", "sentence_zho_Hans": ")" + pair[1] + "\"}\n";
  }
  write_text(folder / "dev.jsonl", rows);
  const std::string copy = (folder / "dev.jsonl").string();
  const std::string out = (folder / "sets").string();
  const ProgramResult partial = kda({"export-flores", "--from", copy, "--out", out});
  EXPECT_EQ(partial.exit_code, 1);
  EXPECT_TRUE(mentions(partial.err, "expected 997 sentences, got 5")) << partial.err;
  const ProgramResult made =
      kda({"export-flores", "--from", copy, "--out", out, "--allow-partial"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(mentions(made.out, "flores_dev: 5 pairs")) << made.out;
  const ProgramResult scored =
      kda({"eval", "mt", "--ckpt", trained_run().string(), "--data", out, "--set", "flores_dev",
           "--max-new-tokens", "4", "--no-bleu", "--device", "cpu"});
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_TRUE(mentions(scored.out, "flores_dev.zh2en")) << scored.out;
  const ProgramResult help = kda({"export-flores", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(mentions(help.out, "usage: kda export-flores")) << help.out;
}

}  // namespace
}  // namespace kda::cli
