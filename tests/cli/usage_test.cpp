#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "cli/world.h"
#include "io/atomic_file.h"

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

TEST(Usage, ErrorsNameTheFlagAndTheNumberAsTyped) {
  const std::string run = testing::trained_run().string();
  const std::string spm = testing::tokenizer_file().string();
  const std::string empty = (testing::scratch() / "empty.txt").string();
  testing::write_text(empty, "");
  const std::string folder = testing::fresh_folder("flags").string();
  const auto generate = [&](const std::string& flag, const std::string& value) {
    return kda({"generate", "--ckpt", run, "--prompt", "x", flag, value});
  };
  expect_error(generate("--temperature", "-1e-9"), 2, "generate", {"--temperature: ", "-1e-09"});
  expect_error(generate("--top-p", "0"), 2, "generate", {"--top-p: ", "got 0"});
  expect_error(generate("--top-k", "-1"), 2, "generate", {"--top-k: ", "of at least 0, got -1"});
  expect_error(generate("--input", folder), 2, "generate", {"--input"});  // excludes --prompt
  expect_error(kda({"generate", "--ckpt", run, "--input", folder}), 1, "generate",
               {"--input: ", "Is a directory"});
  expect_error(kda({"tokenizer", "train", "--data", testing::corpus().string(), "--vocab-size", "5",
                    "--out", folder + "/spm"}),
               2, "tokenizer train", {"error: --vocab-size: "});
  expect_error(kda({"eval", "ppl", "--ckpt", run, "--text", empty}), 2, "eval ppl",
               {"error: --text: ", "empty.txt"});
  expect_error(kda(testing::train_arguments(empty, 5)), 2, "train", {"error: --out: ", "a file"});
  expect_error(kda({"train", "--resume", empty}), 2, "train", {"error: --resume: ", "a file"});
  expect_error(kda(testing::train_arguments(std::string(300, 'y'), 5)), 1, "train",
               {"error: --out: ", "File name too long"});
  expect_error(kda({"generate", "--ckpt", std::string(300, 'y'), "--prompt", "x"}), 1, "generate",
               {"File name too long"});
  expect_error(
      kda(testing::train_arguments(folder + "/run", 5,
                                   {"--set", "rms_norm_eps=1e-9", "--set", "rms_norm_eps=1.5"})),
      2, "train", {"rms_norm_eps: expected a number in (0, 1)", "got 1.5\n"});
}

TEST(Usage, ARunsConfigurationIsNoModel) {
  const std::filesystem::path folder = testing::fresh_folder("shapes");
  std::vector<std::string> words = testing::train_arguments(folder / "run", 5);
  const auto preset = std::find(words.begin(), words.end(), "--preset");
  words.erase(preset, preset + 2);
  words.insert(words.end(), {"--model-config", (testing::trained_run() / "config.json").string()});
  expect_error(kda(words), 1, "train", {"--model-config: ", "a run's configuration", "step-..."});
}

TEST(Usage, StandardInputThatCannotBeReadIsNoEmptyText) {
  const std::string spm = testing::tokenizer_file().string();
  const std::string run = testing::trained_run().string();
  for (const std::string& words :
       {"tokenizer encode '" + spm + "'", "generate --ckpt '" + run + "'",
        "generate --interactive --ckpt '" + run + "'", "generate --input - --ckpt '" + run + "'"}) {
    const std::string command = KDA_PROGRAM " " + words + " < / > /dev/null 2> '" +
                                (testing::scratch() / "said").string() + "'";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << words;
    EXPECT_NE(io::read_file(testing::scratch() / "said").find("cannot read standard input: Is a"),
              std::string::npos)
        << words;
  }
}

TEST(Usage, PackingDoesNotWriteIntoACorpus) {
  const std::filesystem::path corpus = testing::fresh_folder("corpus-of-its-own");
  std::filesystem::copy(testing::corpus(), corpus, std::filesystem::copy_options::recursive);
  testing::write_text(corpus / "MANIFEST.json", "{}");
  const std::vector<std::string> words{"data",        "pack",
                                       "--data",      corpus.string(),
                                       "--tokenizer", testing::tokenizer_file().string(),
                                       "--out",       corpus.string()};
  expect_error(kda(words), 2, "data pack", {"--out: ", "holds a corpus"});
  EXPECT_FALSE(std::filesystem::exists(corpus / "train"));
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
