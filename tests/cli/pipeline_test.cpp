#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cli/world.h"
#include "io/atomic_file.h"
#include "io/jsonl_log.h"
#include "io/sha256.h"
#include "io/utf8.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::corpus;
using testing::expect_error;
using testing::fresh_folder;
using testing::kda;
using testing::mentions;
using testing::ProgramResult;
using testing::tokenizer_file;
using testing::train_arguments;
using testing::trained_run;

TEST(Pipeline, Tokenizer_EncodesAndDecodesWhatItWasGiven) {
  const std::string spm = tokenizer_file().string();
  for (const std::string& text : {std::string("小猫，？！（１２３）…"), std::string("a  b\tc"),
                                  std::string(" leading"), std::string("emoji 🙂 end")}) {
    const ProgramResult ids = kda({"tokenizer", "encode", spm, text});
    ASSERT_EQ(ids.exit_code, 0) << ids.err;
    const ProgramResult back = kda({"tokenizer", "decode", spm}, {ids.out, {}});
    EXPECT_EQ(back.out, text + "\n");
  }
  const std::string nul("a\0b\n", 4);
  const ProgramResult ids = kda({"tokenizer", "encode", spm}, {nul, {}});
  EXPECT_EQ(kda({"tokenizer", "decode", spm}, {ids.out, {}}).out, nul);
  expect_error(kda({"tokenizer", "encode", spm}, {"good\nb\xff\n", {}}), 2, "tokenizer encode",
               {"line 2", "UTF-8", "byte 2"});
  const ProgramResult inspect = kda({"tokenizer", "inspect", spm, "小猫"});
  EXPECT_TRUE(mentions(inspect.out, "lossless     yes")) << inspect.out;
  EXPECT_TRUE(mentions(inspect.out, "the same text"));
}

TEST(Pipeline, Train_WritesWhatItPromises) {
  const fs::path& run = trained_run();
  for (const char* name : {"config.json", "metrics.jsonl", "loss.svg", "best.json"}) {
    EXPECT_TRUE(fs::exists(run / name)) << name;
  }
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "trainer.json",
                           "config.json", "tokenizer.model", "manifest.json"}) {
    EXPECT_TRUE(fs::exists(run / "step-000030" / name)) << name;
  }
  const auto records = io::read_jsonl(run / "metrics.jsonl");
  int steps = 0;
  int evaluations = 0;
  double first = 0;
  double last = 0;
  for (const io::Json& record : records) {
    if (record.at("kind") == "step") {
      if (steps++ == 0) first = record.at("loss").get<double>();
      last = record.at("loss").get<double>();
    }
    evaluations += record.at("kind") == "eval";
  }
  EXPECT_EQ(steps, 30);
  EXPECT_EQ(evaluations, 3);
  EXPECT_NEAR(first, std::log(380.0), 0.6);
  EXPECT_LT(last, first - 0.5);
}

TEST(Pipeline, Train_TellsConfigurationMemoryFirstBatchAndSteps) {
  const fs::path run = fresh_folder("told") / "run";
  const ProgramResult result = kda(train_arguments(run, 3));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"== configuration", "seq_len", "== run", "parameters", "memory ", "threads 1", "disk ",
        "== first batch", "== training", "step 1/3", "step 3/3", "| loss ", "| gn ", "| lr ",
        "tok/s", "eta ", "saved ", "peak memory", "loss.svg"}) {
    EXPECT_TRUE(mentions(result.out, part)) << part << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
  EXPECT_FALSE(mentions(result.out, "\r"));
}

TEST(Pipeline, Train_OverAnExistingRunIsRefused) {
  expect_error(kda(train_arguments(trained_run(), 30)), 2, "train",
               {"already holds a run", "--resume", "--overwrite"});
}

TEST(Pipeline, Resume_TwoProcessesGiveTheBytesOfOne) {
  const fs::path folder = fresh_folder("resume");
  const std::vector<std::string> more{"--grad-accum", "2", "--save-every", "5u"};
  std::vector<std::string> split = more;
  split.insert(split.end(), {"--stop-after", "6"});
  ASSERT_EQ(kda(train_arguments(folder / "one", 12, more)).exit_code, 0);
  ASSERT_EQ(kda(train_arguments(folder / "two", 12, split)).exit_code, 0);
  const ProgramResult rest = kda({"train", "--resume", (folder / "two").string()});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_TRUE(mentions(rest.out, "resumed ")) << rest.out;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(io::to_hex(io::sha256_file(folder / "one/step-000012" / name)),
              io::to_hex(io::sha256_file(folder / "two/step-000012" / name)))
        << name;
  }
}

TEST(Pipeline, Config_OfARunReproducesIt) {
  const fs::path folder = fresh_folder("config");
  ASSERT_EQ(kda(train_arguments(folder / "one", 4)).exit_code, 0);
  const ProgramResult again = kda({"train", "--config", (folder / "one/config.json").string(),
                                   "--out", (folder / "two").string()});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(io::read_file(folder / "one/step-000004/model.safetensors"),
            io::read_file(folder / "two/step-000004/model.safetensors"));
}

TEST(Pipeline, Generate_IsDeterministicAndSeparatesTextFromNumbers) {
  const std::string run = trained_run().string();
  const std::vector<std::string> greedy{
      "generate", "--ckpt", run, "--prompt", "The clerk", "--greedy", "--max-new-tokens", "20"};
  const ProgramResult a = kda(greedy);
  ASSERT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(a.out, kda(greedy).out);
  EXPECT_EQ(a.out.rfind("The clerk", 0), 0u);
  EXPECT_TRUE(mentions(a.err, "finish=length") || mentions(a.err, "finish=stop")) << a.err;
  EXPECT_FALSE(mentions(a.out, "finish="));
  std::vector<std::string> zero = greedy;
  zero[5] = "--temp=0";
  EXPECT_EQ(kda(zero).out, a.out);

  const auto sampled = [&](const std::string& seed) {
    return kda({"generate", "--ckpt", run, "--prompt", "小猫", "--temperature", "1.5", "--top-k",
                "50", "--top-p", "0.99", "--seed", seed, "--max-new-tokens", "40"});
  };
  const ProgramResult first = sampled("7");
  EXPECT_EQ(first.out, sampled("7").out);
  EXPECT_NE(first.out, sampled("8").out);
  EXPECT_TRUE(io::is_utf8(first.out));
}

TEST(Pipeline, Generate_PromptFromFileAndPipe) {
  const std::string run = trained_run().string();
  const fs::path file = testing::scratch() / "prompt.txt";
  testing::write_text(file, "The clerk\n");
  const std::vector<std::string> base{"generate", "--ckpt",           run,
                                      "--greedy", "--max-new-tokens", "8"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = base;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::string expected = kda(with({"--prompt", "The clerk"})).out;
  EXPECT_EQ(kda(with({"--prompt-file", file.string()})).out, expected);
  EXPECT_EQ(kda(base, {"The clerk\n", {}}).out, expected);
  EXPECT_EQ(kda(with({"--prompt-file", "-"}), {"The clerk", {}}).out, expected);
  expect_error(kda(with({"--prompt", "x", "--prompt-file", file.string()})), 2, "generate",
               {"exclude each other"});
  const ProgramResult empty = kda(with({"--prompt", ""}));
  EXPECT_EQ(empty.exit_code, 0) << empty.err;
}

TEST(Pipeline, Generate_SamplingLimitsAreChecked) {
  const std::string run = trained_run().string();
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"generate", "--ckpt", run, "--prompt", "The "};
    words.insert(words.end(), more.begin(), more.end());
    return kda(words);
  };
  const std::vector<std::vector<std::string>> refused = {
      {"--temperature=-1"}, {"--temperature", "nan"}, {"--temperature", "inf"},
      {"--top-p", "0"},     {"--top-p", "1.5"},       {"--top-p", "nan"},
      {"--top-k=-1"},       {"--max-new-tokens=-1"},  {"--samples", "0"}};
  for (const auto& words : refused) {
    SCOPED_TRACE(::testing::PrintToString(words));
    const ProgramResult result = generate(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("kda generate: error: ", 0), 0u) << result.err;
  }
  const std::vector<std::vector<std::string>> accepted = {{"--temperature", "1e-4"},
                                                          {"--top-p", "1e-9"},
                                                          {"--top-k", "1000000000"},
                                                          {"--max-new-tokens", "0"}};
  for (std::vector<std::string> words : accepted) {
    SCOPED_TRACE(::testing::PrintToString(words));
    if (words[0] != "--max-new-tokens") words.insert(words.end(), {"--max-new-tokens", "4"});
    const ProgramResult result = generate(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(generate({"--temperature", "1e-4", "--max-new-tokens", "8"}).out,
            generate({"--greedy", "--max-new-tokens", "8"}).out);
}

TEST(Pipeline, EvalPpl_AgreesWithTheTrainersBest) {
  const ProgramResult result =
      kda({"eval", "ppl", "--ckpt", (trained_run() / "best").string(), "--text", corpus().string(),
           "--batch", "2", "--seq-len", "32", "--threads", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const io::Json json = io::parse_json(result.out.substr(result.out.rfind('{')), "result");
  const io::Json best = io::read_json_file(trained_run() / "best.json");
  EXPECT_NEAR(json.at("loss").get<double>(), best.at("heldout_loss").get<double>(), 1e-6);
  EXPECT_GT(json.at("bits_per_byte").get<double>(), 0.0);
}

TEST(Pipeline, DataPack_TrainsFromShardsAlone) {
  const fs::path folder = fresh_folder("pack");
  std::vector<std::string> arguments = {"data",        "pack",
                                        "--data",      corpus().string(),
                                        "--tokenizer", tokenizer_file().string(),
                                        "--out",       (folder / "packed").string()};
  const ProgramResult pack = kda(arguments);
  ASSERT_EQ(pack.exit_code, 0) << pack.err;
  // The corpus has its own held-out file, so a share of the rest is refused.
  arguments.insert(arguments.end(), {"--heldout-share", "0.1"});
  testing::expect_error(kda(arguments), 2, "data pack", {"--heldout-share", "heldout.txt"});
  const ProgramResult inspect = kda({"data", "inspect", (folder / "packed").string()});
  EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_TRUE(mentions(inspect.out, "agree with the manifest")) << inspect.out;
  EXPECT_TRUE(mentions(inspect.out, "document 0"));
  const ProgramResult train =
      kda({"train", "--preset", "tiny", "--data", (folder / "packed").string(), "--steps", "3",
           "--batch", "2", "--seq-len", "32", "--out", (folder / "run").string()});
  EXPECT_EQ(train.exit_code, 0) << train.err;
}

/// Bytes of "... peak memory 484M" in what a run said at its end.
double peak_memory(const std::string& text) {
  const std::string words = "peak memory ";
  const std::size_t at = text.rfind(words);
  if (at == std::string::npos) return 0;
  std::size_t used = 0;
  const double number = std::stod(text.substr(at + words.size()), &used);
  return number * (text[at + words.size() + used] == 'G' ? 1073741824.0 : 1048576.0);
}

TEST(Pipeline, ResumingPeaksAtWhatTrainingPeaksAt) {
  const fs::path run = fresh_folder("peak") / "run";
  // 6M parameters: a copy of the checkpoint kept behind would be half of what the run takes.
  std::vector<std::string> arguments = train_arguments(run, 4, {"--stop-after", "2"});
  *(std::find(arguments.begin(), arguments.end(), "tiny")) = "toy";
  const ProgramResult first = kda(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const ProgramResult second = kda({"train", "--resume", run.string()});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  ASSERT_GT(peak_memory(first.out), 0) << first.out;
  EXPECT_LT(peak_memory(second.out), 1.2 * peak_memory(first.out)) << second.out;
}

TEST(Pipeline, Ckpt_LsInspectVerify) {
  const std::string run = trained_run().string();
  const ProgramResult ls = kda({"ckpt", "ls", run});
  EXPECT_EQ(ls.exit_code, 0);
  EXPECT_TRUE(mentions(ls.out, "step-000030")) << ls.out;
  EXPECT_TRUE(mentions(ls.out, "last"));
  EXPECT_TRUE(mentions(ls.out, "best (held-out "));
  const ProgramResult inspect = kda({"ckpt", "inspect", run, "--tensors"});
  EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  for (const char* part :
       {"parameters", "step 30", "in pass ", "tokenizer", "seq_len", "embed_tokens", "F32"}) {
    EXPECT_TRUE(mentions(inspect.out, part)) << part;
  }
  const ProgramResult verify = kda({"ckpt", "verify", run});
  EXPECT_EQ(verify.exit_code, 0) << verify.err;
  EXPECT_TRUE(mentions(verify.out, "sound"));
}

TEST(Pipeline, Doctor_IsWell) {
  const ProgramResult result = kda({"doctor", "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* part : {"torch", "threads        1 in effect", "SIMD target", "backends",
                           "memory", "device", "self-test", "all well"}) {
    EXPECT_TRUE(mentions(result.out, part)) << part << "\n" << result.out;
  }
}

TEST(Pipeline, Threads_EffectiveNumberIsTheOneAskedFor) {
  const ProgramResult two = kda({"doctor", "--threads", "2"}, {"", {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_TRUE(mentions(two.out, "threads        2 in effect")) << two.out;
}

TEST(Pipeline, Overfit_SucceedsAndFailsHonestly) {
  const ProgramResult good = kda({"overfit", "--backend", "auto"});
  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  EXPECT_TRUE(mentions(good.out, "done: loss under the target")) << good.out;
  const ProgramResult bad = kda({"overfit", "--backend", "auto", "--steps", "2"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_TRUE(mentions(bad.err, "did not fall below")) << bad.err;
}

TEST(Pipeline, NonFinite_ExitsThreeAndSkipCounts) {
  const fs::path folder = fresh_folder("nonfinite");
  const ProgramResult stop =
      kda(train_arguments(folder / "a", 10, {"--poison-step", "7", "--save-every", "5u"}));
  EXPECT_EQ(stop.exit_code, 3) << stop.err;
  for (const char* part : {"step 7", "layers.1.", "step-000005"}) {
    EXPECT_TRUE(mentions(stop.err, part)) << stop.err;
  }
  const ProgramResult skip =
      kda(train_arguments(folder / "b", 10, {"--poison-step", "7", "--on-nonfinite", "skip:3"}));
  EXPECT_EQ(skip.exit_code, 0) << skip.err;
  EXPECT_TRUE(mentions(skip.out, "1 steps skipped")) << skip.out;
}

}  // namespace
}  // namespace kda::cli
