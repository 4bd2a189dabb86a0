#include <gtest/gtest.h>

#include "cli/world.h"

namespace kda::cli {
namespace {

using testing::expect_error;
using testing::kda;
using testing::ProgramResult;

TEST(Usage, NoArguments_PrintsUsageAndExitsTwo) {
  const ProgramResult result = kda({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.out.find("Usage: kda COMMAND"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("train"), std::string::npos);
}

TEST(Usage, Version_HasCommitTorchAndFlags) {
  const ProgramResult result = kda({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("kda 0."), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("commit "), std::string::npos);
  EXPECT_NE(result.out.find("torch 2.11"), std::string::npos);
  EXPECT_NE(result.out.find("flags:"), std::string::npos);
}

TEST(Usage, Help_OfEveryVerbHasUsageAndExamples) {
  const std::vector<std::vector<std::string>> verbs = {{"train"},
                                                       {"sft"},
                                                       {"generate"},
                                                       {"trace"},
                                                       {"extract"},
                                                       {"overfit"},
                                                       {"bench"},
                                                       {"doctor"},
                                                       {"eval", "ppl"},
                                                       {"eval", "mt"},
                                                       {"ckpt", "ls"},
                                                       {"ckpt", "inspect"},
                                                       {"ckpt", "verify"},
                                                       {"data", "pack"},
                                                       {"data", "inspect"},
                                                       {"tokenizer", "train"},
                                                       {"tokenizer", "encode"},
                                                       {"tokenizer", "decode"},
                                                       {"tokenizer", "inspect"}};
  for (std::vector<std::string> words : verbs) {
    std::string name = "kda";
    for (const std::string& word : words)
      name += " " + word;
    words.emplace_back("--help");
    const ProgramResult result = kda(words);
    EXPECT_EQ(result.exit_code, 0) << name;
    EXPECT_NE(result.out.find("Usage: " + name + " "), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("Examples:\n  "), std::string::npos) << name;
    EXPECT_EQ(result.err, "") << name;
    for (std::size_t at = 0; at < result.out.size();) {
      const std::size_t end = std::min(result.out.find('\n', at), result.out.size());
      EXPECT_LE(end - at, 110u) << result.out.substr(at, end - at);
      at = end + 1;
    }
  }
}

TEST(Usage, UnknownThings_NameTheNearestKnownOne) {
  expect_error(kda({"trian"}), 2, "", {"unknown command 'trian'", "did you mean train?"});
  expect_error(kda({"tokenizer", "encod"}), 2, "tokenizer", {"did you mean encode?"});
  expect_error(kda({"train", "--stpes", "800"}), 2, "train",
               {"unknown option --stpes", "did you mean --steps?"});
  expect_error(kda({"train", "--seq_len=128"}), 2, "train",
               {"unknown option --seq_len", "did you mean --seq-len?"});
  expect_error(kda({"train", "--learning-rate", "1e-3"}), 2, "train",
               {"unknown option --learning-rate", "did you mean --lr?"});
  expect_error(kda({"sft", "--batch-size=4"}), 2, "sft", {"did you mean --batch?"});
  expect_error(kda({"generate", "--ckpt", "x", "--zzzzzzzz"}), 2, "generate",
               {"unknown option --zzzzzzzz", "--help"});
  expect_error(kda({"tokenizer"}), 2, "tokenizer", {"command is missing"});
  expect_error(kda({"--frobnicate"}), 2, "", {"--frobnicate"});
}

TEST(Usage, WrongValues_AreOneLineAndExitTwo) {
  const std::string spm = testing::tokenizer_file().string();
  const std::vector<std::string> start = testing::train_arguments(testing::scratch() / "never", 5);
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = start;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  struct Case {
    std::vector<std::string> arguments;
    std::string verb;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {with({"--max-tokens", "5k"}), "train", {"--steps", "--max-tokens", "exclude each other"}},
      {with({"--lr", "fast"}), "train", {"--lr", "'fast'"}},
      {with({"--lr", "-1"}), "train", {"--lr", "-1"}},
      {with({"--steps", "2Mt"}), "train", {"--steps", "optimizer steps", "2Mt"}},
      {with({"--optimizer", "lion"}), "train", {"--optimizer", "adamw or muon", "lion"}},
      {with({"--schedule", "linear"}), "train", {"--schedule", "cosine or wsd"}},
      {with({"--attnres", "some"}), "train", {"--attnres", "off, block or full"}},
      {with({"--attnres-block-size", "2"}), "train", {"--attnres-block-size", "--attnres block"}},
      {with({"--device", "gpu"}), "train", {"--device", "cuda:N", "gpu"}},
      {with({"--batch", "0"}), "train", {"--batch", "0"}},
      {with({"--eval-every", "5x"}), "train", {"--eval-every", "5x", "200u"}},
      {with({"--dtype", "fp8"}), "train", {"--dtype", "fp8"}},
      {with({"--preset", "huge"}), "train", {"error: --preset: ", "huge", "tiny", "toy"}},
      {with({"--set", "num_hidden_layer=2"}), "train", {"did you mean num_hidden_layers?"}},
      {with({"--set", "linear_attn_config.chunksize=32"}),
       "train",
       {"did you mean linear_attn_config.chunk_size?"}},
      {with({"--set", "num_hidden_layers=-2"}), "train", {"num_hidden_layers", "-2"}},
      {with({"--set", "novalue"}), "train", {"--set", "novalue"}},
      {with({"--on-nonfinite", "ignore"}), "train", {"--on-nonfinite", "skip:N"}},
      {with({"--backend", "tpu"}), "train", {"--backend: expected auto", "got \"tpu\""}},
      {with({"--warmup", "6"}), "train", {"error: --warmup: expected 0 to 5", "6"}},
      {with({"--momentum", "0.9"}), "train", {"--momentum: has no effect", "adamw"}},
      {with({"--qk-clip", "30"}), "train", {"--qk-clip: has no effect", "adamw"}},
      {with({"--decay", "2"}), "train", {"--decay: has no effect", "cosine"}},
      {with({"--optimizer", "muon", "--qk-clip", "30"}), "train", {"--qk-clip", "MLA"}},
      {with({"--sample-every", "off", "--sample-tokens", "9"}), "train", {"--sample-every off"}},
      {with({"--eval-every", "off", "--eval-tokens", "9"}), "train", {"--eval-every off"}},
      {with({"--heldout-share", "0.1"}), "train", {"--heldout-share: has no effect"}},
      {with({"--stop-after", "6"}), "train", {"--stop-after: has no effect", "5 steps"}},
      {with({"--resume", "elsewhere"}), "train", {"--resume elsewhere", "--out"}},
      {{"train", "--resume", "x", "--overwrite"}, "train", {"--overwrite", "--resume"}},
      {with({"--auto-resume", "--overwrite"}), "train", {"--overwrite", "--auto-resume"}},
      {{"train", "--resume", "x", "--config", "y"}, "train", {"--resume", "--config"}},
      {{"train", "--steps", "5"}, "train", {"--out"}},
      {{"train", "--steps"}, "train", {"--steps"}},
      {{"generate"}, "generate", {"--ckpt"}},
      {{"tokenizer", "decode", spm, "5 x"}, "tokenizer decode", {"'x'"}},
      {{"tokenizer", "decode", spm, "999999"}, "tokenizer decode", {"999999"}},
      {{"bench", "--threads", "0"}, "bench", {"--threads", "0"}},
      {{"overfit", "--backend", "tpu"}, "overfit", {"--backend: expected auto", "tpu"}},
      {{"bench", "--backend", "tpu"}, "bench", {"--backend: expected auto", "tpu"}},
      {{"overfit", "--steps", "0"}, "overfit", {"--steps"}},
      {{"overfit", "--seed", "-1"}, "overfit", {"--seed", "got -1"}},
      {{"overfit", "--lr", "nan"}, "overfit", {"--lr", "'nan'"}},
      {{"overfit", "--threads", "100000"}, "overfit", {"--threads", "4096", "100000"}},
      {{"doctor", "--threads", "-1"}, "doctor", {"--threads", "4096", "-1"}},
      {{"bench", "--threads", "100000"}, "bench", {"--threads", "100000"}},
      {{"generate", "--ckpt", "x", "--seed", "0x10"}, "generate", {"--seed", "'0x10'"}},
      {{"generate", "--ckpt", "x", "--top-p", "half"}, "generate", {"--top-p", "'half'"}},
      {{"generate", "--ckpt", "x", "--prompt", "a\xff"},
       "generate",
       {"--prompt", "UTF-8", "byte 2"}},
      {{"generate", "--ckpt", "x", "--max-new-tokens", "99999999999999999999"},
       "generate",
       {"--max-new-tokens", "99999999999999999999"}},
      {{"eval", "ppl", "--ckpt", "x", "--text", "x", "--batch", "0"}, "eval ppl", {"--batch", "0"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.arguments));
    expect_error(kda(c.arguments), 2, c.verb, c.parts);
  }
}

TEST(Usage, Fp16_IsRefusedWithTheReasonAndExitThree) {
  const std::vector<std::string> arguments =
      testing::train_arguments(testing::scratch() / "never", 5, {"--dtype", "fp16"});
  expect_error(kda(arguments), 3, "train", {"fp16", "65504", "bf16"});
  EXPECT_FALSE(std::filesystem::exists(testing::scratch() / "never"));  // by no refused run above
}

TEST(Usage, BackendOfAnotherDevice_IsRefusedByItsFlag) {
  const std::vector<std::string> arguments = testing::train_arguments(
      testing::scratch() / "never", 5, {"--backend", "cuda", "--device", "cpu"});
  expect_error(kda(arguments), 3, "train", {"error: --backend cuda: ", "device is cpu"});
  expect_error(kda({"overfit", "--backend", "cuda"}), 3, "overfit", {"error: --backend cuda: "});
  expect_error(kda({"generate", "--ckpt", testing::trained_run().string(), "--backend", "cuda",
                    "--device", "cpu", "--prompt", "x"}),
               3, "generate", {"error: --backend cuda: ", "device is cpu"});
  EXPECT_FALSE(std::filesystem::exists(testing::scratch() / "never"));
}

TEST(Usage, DumpConfig_IsReadBackByConfig) {
  std::vector<std::string> arguments = testing::train_arguments("runs/x", 5, {"--lr", "0.0025"});
  arguments.emplace_back("--dump-config");
  const ProgramResult first = kda(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string file = (testing::scratch() / "dump.toml").string();
  testing::write_text(file, first.out);
  const ProgramResult second = kda({"train", "--config", file, "--dump-config"});
  EXPECT_EQ(second.out, first.out) << second.err;
  const ProgramResult third =
      kda({"train", "--config", file, "--max-tokens", "1Mt", "--dump-config"});
  EXPECT_NE(third.out.find("steps = 0\n"), std::string::npos) << third.out << third.err;
  EXPECT_NE(third.out.find("max_tokens = 1000000\n"), std::string::npos);
  EXPECT_NE(third.out.find("lr = 0.0025\n"), std::string::npos);
}

TEST(Usage, DumpConfig_OfFineTuningNeedsNoTokenizer) {
  // The checkpoint brings it.
  const std::vector<std::string> words{"sft",   "--ckpt", "base",    "--data", "pairs",
                                       "--out", "o",      "--steps", "9",      "--dump-config"};
  const ProgramResult result = kda(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("tokenizer = \"\"\n"), std::string::npos) << result.out;
  expect_error(kda({"train", "--data", "d", "--out", "o", "--steps", "9", "--dump-config"}), 2,
               "train", {"--tokenizer"});
}

TEST(Usage, Config_MistakesNameFileAndNearestKey) {
  const std::string file = (testing::scratch() / "wrong.toml").string();
  testing::write_text(file, "seq_lem = 128\n");
  expect_error(kda({"train", "--config", file}), 2, "train", {"wrong.toml", "seq_lem", "seq_len"});
  testing::write_text(file, "[sft]\nlr = 1e-4\n");
  expect_error(kda({"train", "--config", file}), 2, "train", {"wrong.toml", "[train]"});
}

TEST(Usage, PresetDefaults_AreThoseOfTheRecipe) {
  std::vector<std::string> words{"train", "--preset",    "0.5b",  "--data",
                                 "d",     "--tokenizer", "t",     "--out",
                                 "o",     "--attnres",   "block", "--dump-config"};
  const ProgramResult plain = kda(words);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* line : {"seq_len = 2048\n", "batch = 2\n", "grad_accum = 8\n", "lr = 0.0003\n",
                           "recompute = true\n", "dtype = \"bf16\"\n", "steps = 250\n"}) {
    EXPECT_NE(plain.out.find(line), std::string::npos) << line << plain.out;
  }
  words.insert(words.end(), {"--batch", "1", "--max-tokens", "1G"});
  const ProgramResult changed = kda(words);
  for (const char* line : {"batch = 1\n", "steps = 0\n", "max_tokens = 1000000000\n"})
    EXPECT_NE(changed.out.find(line), std::string::npos) << line << changed.out;
}

TEST(Usage, Colours_NeverReachAPipe) {
  const ProgramResult result = kda({"doctor"}, {"", {{"TERM", "xterm-256color"}}});
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace kda::cli
