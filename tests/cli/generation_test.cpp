#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/world.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/jsonl_log.h"

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

using Words = std::vector<std::string>;

ProgramResult continue_with(const Words& more, const std::string& input = {}) {
  Words words{"generate", "--ckpt", trained_run().string(), "--ignore-eos", "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return kda(words, {input, {}});
}

std::string text_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// Saved in one process, taken up in another: the tokens are those of one run.
TEST(Generation, Session_GoesOnInANewProcess) {
  for (const char* temperature : {"0", "1.2"}) {
    for (const int first : {0, 1, 64, 65}) {
      const fs::path folder = fresh_folder("session");
      const auto run = [&](const char* name, int count, const char* prompt) {
        return text_of(
            continue_with({"--session", (folder / name).string(), "--prompt", prompt, "--temp",
                           temperature, "--seed", "5", "--max-new-tokens", std::to_string(count)}));
      };
      const auto ids = [&](const char* name) {
        return io::read_json_file(folder / name / "session.json").at("ids");
      };
      const std::string whole = run("whole", first + 16, "The clerk");
      EXPECT_EQ(whole.rfind("The clerk", 0), 0U);
      run("parts", first, "The clerk");
      run("parts", 16, "");
      EXPECT_EQ(ids("parts"), ids("whole")) << first << " " << temperature;
    }
  }
}

TEST(Generation, Session_OfAnotherModelIsRefused) {
  const fs::path folder = fresh_folder("foreign");
  const std::string session = (folder / "s").string();
  text_of(continue_with({"--prompt", "The", "--max-new-tokens", "3", "--session", session}));
  ASSERT_EQ(kda(testing::train_arguments(folder / "run", 2, {"--seed", "9"})).exit_code, 0);
  expect_error(kda({"generate", "--ckpt", (folder / "run").string(), "--session", session,
                    "--prompt", "", "--max-new-tokens", "3", "--device", "cpu"}),
               2, "generate", {"another model"});
  write_text(folder / "s" / "session.json", "{\"format\": \"kda-session\"");
  const ProgramResult broken = continue_with({"--session", session, "--prompt", ""});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_TRUE(mentions(broken.err, "session.json")) << broken.err;
}

TEST(Generation, Jsonl_BatchesGiveWhatSingleRunsGive) {
  const fs::path folder = fresh_folder("jsonl");
  const std::vector<std::string> prompts{"The clerk", "小猫", "A stone remembers nothing, time",
                                         "Our"};
  std::string rows;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    rows += "{\"id\": " + std::to_string(i) + ", \"prompt\": \"" + prompts[i] + "\"}\n\n";
  write_text(folder / "in.jsonl", rows);
  const std::string in = (folder / "in.jsonl").string();
  const auto run = [&](const char* batch) {
    const std::string out = (folder / (std::string("out") + batch)).string();
    const ProgramResult result =
        continue_with({"--input", in, "--output", out, "--batch", batch, "--temp", "1.1", "--seed",
                       "3", "--max-new-tokens", "9"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "");
    return io::read_jsonl(out);
  };
  const auto three = run("3");
  ASSERT_EQ(three.size(), prompts.size());
  EXPECT_EQ(run("1"), three);
  for (std::size_t i = 0; i < three.size(); ++i) {
    EXPECT_EQ(three[i].at("id"), i);
    EXPECT_EQ(three[i].at("prompt"), prompts[i]);
    EXPECT_EQ(three[i].at("finish"), "length");
    EXPECT_EQ(three[i].at("new_tokens"), 9);
  }
  // Row 0 is what a plain run draws.
  const std::string plain = text_of(continue_with(
      {"--prompt", prompts[0], "--temp", "1.1", "--seed", "3", "--max-new-tokens", "9"}));
  EXPECT_EQ(plain, prompts[0] + three[0].at("text").get<std::string>() + "\n");
  // Through pipes.
  const ProgramResult piped = continue_with({"--input", "-", "--max-new-tokens", "2"}, rows);
  EXPECT_EQ(std::count(piped.out.begin(), piped.out.end(), '\n'), 4) << piped.out << piped.err;
}

TEST(Generation, Jsonl_FaultsNameTheLineAndLeaveNoFile) {
  const fs::path folder = fresh_folder("badjsonl");
  const auto run = [&](const std::string& rows) {
    write_text(folder / "in.jsonl", rows);
    return continue_with({"--input", (folder / "in.jsonl").string(), "--output",
                          (folder / "out.jsonl").string(), "--batch", "1", "--max-new-tokens",
                          "1"});
  };
  const std::string good = "{\"prompt\": \"a\"}\n";
  expect_error(run(good + "{\"prompt\": }\n"), 1, "generate", {"in.jsonl:2"});
  expect_error(run(good + "[1]\n"), 1, "generate", {"in.jsonl:2", "object"});
  expect_error(run(good + "{\"text\": \"a\"}\n"), 1, "generate", {"in.jsonl:2", "\"prompt\""});
  expect_error(run("{\"prompt\": 7}\n"), 1, "generate", {"in.jsonl:1", "expected a string"});
  EXPECT_FALSE(fs::exists(folder / "out.jsonl"));
  expect_error(continue_with({"--input", (folder / "none").string()}), 1, "generate", {"none"});
}

// A rename at the end must not put a file in the place of a pipe.
TEST(Generation, Jsonl_OutputThatIsNoFileIsRefused) {
  const fs::path folder = fresh_folder("jsonl-pipe");
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  write_text(folder / "in.jsonl", "{\"prompt\": \"The\"}\n");
  expect_error(continue_with({"--input", (folder / "in.jsonl").string(), "--output", pipe.string(),
                              "--max-new-tokens", "2"}),
               1, "generate", {"cannot replace", pipe.string()});
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(Generation, ForeignTokenizerIsRefused) {
  const fs::path other = fresh_folder("foreign") / "spm.model";
  const ProgramResult made = kda({"tokenizer", "train", "--data", testing::corpus().string(),
                                  "--vocab-size", "370", "--out", other.string()});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Words words{"--prompt", "x", "--max-new-tokens", "1", "--tokenizer"};
  const auto with = [&](const fs::path& tokenizer) {
    Words all = words;
    all.push_back(tokenizer.string());
    return continue_with(all);
  };
  expect_error(with(other), 2, "generate", {"--tokenizer", "sha256", other.string()});
  EXPECT_EQ(with(testing::tokenizer_file()).exit_code, 0);
}

TEST(Generation, Interactive_GoesOnWithOneText) {
  const fs::path folder = fresh_folder("interactive");
  const std::string saved = (folder / "saved").string();
  const Words how{"--interactive", "--greedy", "--max-new-tokens", "6", "--quiet"};
  const ProgramResult result = continue_with(
      how, "The clerk\n\n/text\n/nonsense\n/save " + saved + "\n/reset\n/text\n/quit\nzzqq\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::string plain =
      text_of(continue_with({"--prompt", "The clerk", "--greedy", "--max-new-tokens", "12"}));
  // Two answers of six tokens, then the whole text.
  EXPECT_TRUE(mentions(result.out, plain)) << result.out << "\n" << plain;
  EXPECT_TRUE(mentions(result.err, "/help")) << result.err;
  EXPECT_FALSE(mentions(result.out, "zzqq"));
  EXPECT_TRUE(fs::exists(fs::path(saved) / "session.json"));
  const ProgramResult help = continue_with(how, "/help\n");
  EXPECT_TRUE(mentions(help.err, "/save DIR"));
}

TEST(Generation, Translate_UsesThePromptOfTraining) {
  const ProgramResult result = continue_with(
      {"--translate", "zh", "--prompt", "The clerk\nreads", "--greedy", "--max-new-tokens", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);  // one line
  EXPECT_FALSE(mentions(result.out, "Translate"));
  const std::string prompt = "Translate to Chinese:\nThe clerk reads\n";
  const ProgramResult plain =
      continue_with({"--prompt", prompt, "--greedy", "--max-new-tokens", "8"});
  const std::string raw = plain.out.substr(prompt.size());
  const std::string answer = raw.substr(0, raw.find('\n'));
  EXPECT_TRUE(mentions(answer, result.out.substr(0, result.out.size() - 1))) << answer;
  expect_error(continue_with({"--translate", "fr", "--prompt", "x"}), 2, "generate",
               {"--translate", "en or zh"});
}

TEST(Generation, PrefillChunk_ChangesNothing) {
  std::string prompt;
  for (int i = 0; i < 40; ++i)
    prompt += "The clerk reads the old map, ";
  const auto with = [&](const char* chunk) {
    return text_of(continue_with(
        {"--prompt", prompt, "--greedy", "--max-new-tokens", "12", "--prefill-chunk", chunk}));
  };
  const std::string whole = with("100000");
  for (const char* chunk : {"200", "65", "64", "63", "16", "1"})
    EXPECT_EQ(with(chunk), whole) << chunk;
}

TEST(Generation, SamplingOptions_OutOfRangeAreUsageErrors) {
  const std::vector<std::vector<std::string>> bad = {
      {"--temp", "-1", "--temperature"},
      {"--temp", "nan", "--temperature"},
      {"--top-p", "0", "--top-p"},
      {"--top-p", "1.5", "--top-p"},
      {"--top-k", "-1", "--top-k"},
      {"--min-p", "1.1", "--min-p"},
      {"--min-p", "-0.1", "--min-p"},
      {"--repetition-penalty", "0", "--repetition-penalty"},
      {"--max-new-tokens", "-1", "--max-new-tokens"},
      {"--repetition-window", "-3", "--repetition-window"},
      {"--samples", "0", "--samples"}};
  for (const auto& row : bad) {
    const ProgramResult result = continue_with({"--prompt", "x", row[0] + "=" + row[1]});
    EXPECT_EQ(result.exit_code, 2) << row[0] << " " << row[1] << result.err;
    EXPECT_TRUE(mentions(result.err, "error: " + row[2] + ": ")) << result.err;
  }
  for (const Words& fine : {Words{"--temp", "1e-4"}, Words{"--top-p", "1e-9"},
                            Words{"--top-k", "1000000000"}, Words{"--min-p", "1"}}) {
    Words words{"--prompt", "The", "--max-new-tokens", "4"};
    words.insert(words.end(), fine.begin(), fine.end());
    EXPECT_EQ(continue_with(words).exit_code, 0) << fine[0];
  }
  // A draw that leaves the best token only is greedy.
  const Words base{"--prompt", "The clerk", "--max-new-tokens", "12"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), base.begin(), base.end());
    return text_of(continue_with(more));
  };
  const std::string greedy = with({"--greedy"});
  EXPECT_EQ(with({"--temp", "2", "--top-k", "1"}), greedy);
  EXPECT_EQ(with({"--temp", "2", "--min-p", "1"}), greedy);
  EXPECT_EQ(with({"--temp", "2", "--top-p", "1e-9"}), greedy);
  EXPECT_NE(with({"--greedy", "--repetition-penalty", "100"}), greedy);
}

TEST(Generation, ModesExcludeEachOther) {
  expect_error(continue_with({"--input", "x", "--prompt", "y"}), 2, "generate",
               {"--input excludes"});
  expect_error(continue_with({"--output", "x", "--prompt", "y"}), 2, "generate",
               {"--output needs"});
  expect_error(continue_with({"--interactive", "--prompt", "y"}), 2, "generate", {"--interactive"});
  expect_error(continue_with({"--session", "x", "--samples", "2", "--prompt", "y"}), 2, "generate",
               {"--samples must be 1"});
  expect_error(continue_with({"--session", "x", "--translate", "en", "--prompt", "y"}), 2,
               "generate", {"--translate excludes"});
}

TEST(Generation, OptionsWithoutEffectAreRefused) {
  const std::vector<Words> bad = {{"--greedy", "--top-k", "5"},
                                  {"--temp", "0", "--top-p", "0.9"},
                                  {"--greedy", "--min-p", "0.1"},
                                  {"--greedy", "--temp", "0.5"},
                                  {"--greedy", "--samples", "2"},
                                  {"--repetition-window", "9"},
                                  {"--batch", "4"}};
  for (const Words& row : bad) {
    Words words{"--prompt", "x"};
    words.insert(words.end(), row.begin(), row.end());
    const std::string& flag = row.size() > 2 ? row[row.size() - 2] : row[0];
    if (row[0] == "--greedy" && flag == "--temp") {
      expect_error(continue_with(words), 2, "generate", {"--greedy is --temperature 0"});
    } else {
      expect_error(continue_with(words), 2, "generate", {flag + ": "});
    }
  }
}

TEST(Generation, Device_ThatIsNotThereIsRefusedNeverReplaced) {
  expect_error(continue_with({"--prompt", "x", "--device", "tpu"}), 2, "generate", {"--device"});
  const ProgramResult far = continue_with({"--prompt", "x", "--device", "cuda:99"});
  EXPECT_EQ(far.exit_code, 3) << far.err;
  EXPECT_TRUE(mentions(far.err, "--device cuda:99")) << far.err;
  EXPECT_EQ(far.out, "");
}

}  // namespace
}  // namespace kda::cli
