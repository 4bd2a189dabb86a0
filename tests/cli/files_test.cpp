#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/world.h"
#include "io/atomic_file.h"
#include "io/manifest.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::fresh_folder;
using testing::kda;
using testing::ProgramResult;
using testing::train_arguments;
using testing::write_text;

std::string checkpoint_copy(const std::string& name) {
  const fs::path copy = fresh_folder(name) / "run";
  fs::copy(testing::trained_run(), copy, fs::copy_options::recursive);
  return copy.string();
}

/// Replaces a file of a checkpoint and brings the manifest in line, so that only the file's own
/// reader can notice.
void forge(const fs::path& checkpoint, const std::string& file, const std::string& content) {
  write_text(checkpoint / file, content);
  const io::Manifest old = io::read_manifest(checkpoint);
  std::vector<std::string> names;
  for (const io::ManifestEntry& entry : old.files)
    names.push_back(entry.name);
  fs::remove(checkpoint / "manifest.json");
  io::write_manifest(checkpoint, old.kind, names, old.info);
}

TEST(Files, Missing_IsOneLineAndExitOne) {
  const std::string spm = testing::tokenizer_file().string();
  expect_error(kda({"generate", "--ckpt", "no/such/run", "--prompt", "x"}), 1, "generate",
               {"no/such/run"});
  expect_error(kda({"ckpt", "ls", "no/such/run"}), 1, "ckpt ls", {"no/such/run"});
  expect_error(kda({"ckpt", "inspect", "no/such/run"}), 1, "ckpt inspect", {"no/such/run"});
  expect_error(kda({"ckpt", "verify", "no/such/run"}), 1, "ckpt verify", {"no/such/run"});
  expect_error(kda({"ckpt", "inspect", "no.safetensors"}), 1, "ckpt inspect", {"no.safetensors"});
  expect_error(kda({"tokenizer", "encode", "no.model", "x"}), 1, "tokenizer encode", {"no.model"});
  expect_error(kda({"tokenizer", "train", "--data", "no.txt", "--out", "x"}), 1, "tokenizer train",
               {"no.txt"});
  expect_error(kda({"data", "inspect", "no.kdatok"}), 1, "data inspect", {"no.kdatok"});
  expect_error(kda({"train", "--data", "no/data", "--tokenizer", spm, "--steps", "5", "--out",
                    (testing::scratch() / "missing-run").string()}),
               1, "train", {"no/data"});
  expect_error(kda({"train", "--config", "no.json"}), 1, "train", {"no.json"});
  expect_error(kda({"eval", "ppl", "--ckpt", testing::trained_run().string(), "--text", "no.txt"}),
               1, "eval ppl", {"--text: no such file or folder", "no.txt"});
  expect_error(
      kda({"generate", "--ckpt", testing::trained_run().string(), "--prompt-file", "no.txt"}), 1,
      "generate", {"no.txt"});
}

TEST(Files, FolderWithoutCorpus_SaysWhatItHas) {
  const fs::path folder = fresh_folder("nocorpus");
  write_text(folder / "readme.md", "x");
  expect_error(
      kda({"train", "--data", folder.string(), "--tokenizer", testing::tokenizer_file().string(),
           "--steps", "5", "--out", (folder / "run").string()}),
      1, "train", {"readme.md", "kda data build"});
}

TEST(Files, EmptyAndBlankText_AreRefused) {
  const fs::path folder = fresh_folder("blank");
  for (const char* text : {"", "  \n\t\n   \n"}) {
    write_text(folder / "pretrain.txt", text);
    const ProgramResult tokenizer = kda(
        {"tokenizer", "train", "--data", folder.string(), "--out", (folder / "x.model").string()});
    EXPECT_NE(tokenizer.exit_code, 0);
    EXPECT_FALSE(fs::exists(folder / "x.model"));
    const ProgramResult train =
        kda({"train", "--data", folder.string(), "--tokenizer", testing::tokenizer_file().string(),
             "--steps", "5", "--out", (folder / "run").string()});
    EXPECT_NE(train.exit_code, 0);
    EXPECT_EQ(train.err.rfind("kda train: error: ", 0), 0u) << train.err;
    EXPECT_NE(train.err.find("pretrain.txt"), std::string::npos) << train.err;
  }
}

TEST(Files, InvalidUtf8_NamesFileAndLine) {
  const fs::path folder = fresh_folder("utf8");
  write_text(folder / "pretrain.txt", "good\n\nbad \xE4\xBD here\n");
  expect_error(
      kda({"train", "--data", folder.string(), "--tokenizer", testing::tokenizer_file().string(),
           "--steps", "5", "--out", (folder / "run").string()}),
      1, "train", {"pretrain.txt", "3"});
}

TEST(Files, HostileTokenizers_AreRefused) {
  const fs::path folder = fresh_folder("tokenizers");
  const std::string good = io::read_file(testing::tokenizer_file());
  write_text(folder / "empty.model", "");
  write_text(folder / "text.model", "this is not a tokenizer at all");
  write_text(folder / "cut.model", good.substr(0, good.size() / 2));
  for (const char* name : {"empty.model", "text.model", "cut.model"}) {
    SCOPED_TRACE(name);
    expect_error(kda({"tokenizer", "inspect", (folder / name).string()}), 1, "tokenizer inspect",
                 {name});
  }
}

TEST(Files, HostileSafetensors_AreRefused) {
  const std::string run = checkpoint_copy("hostile");
  const fs::path checkpoint = fs::path(run) / "step-000030";
  const std::string good = io::read_file(checkpoint / "model.safetensors");
  const std::string huge_header("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  const std::string contents[] = {"",
                                  "short",
                                  huge_header + "{}",
                                  good.substr(0, good.size() - 1),
                                  good + "x",
                                  std::string("\x02\0\0\0\0\0\0\0[]", 10)};
  for (const std::string& content : contents) {
    SCOPED_TRACE(content.size());
    forge(checkpoint, "model.safetensors", content);
    expect_error(kda({"generate", "--ckpt", checkpoint.string(), "--prompt", "x"}), 1, "generate",
                 {"model.safetensors"});
    const ProgramResult verify = kda({"ckpt", "verify", checkpoint.string()});
    EXPECT_EQ(verify.exit_code, 1);
    EXPECT_NE(verify.err.find("model.safetensors"), std::string::npos) << verify.err;
  }
}

TEST(Files, HostileJson_IsRefused) {
  const std::string run = checkpoint_copy("json");
  const fs::path checkpoint = fs::path(run) / "step-000030";
  const std::string good = io::read_file(checkpoint / "trainer.json");
  std::string deep;
  for (int i = 0; i < 5000; ++i)
    deep += "[";
  for (const std::string& content :
       {std::string("{"), deep, std::string("null"), good.substr(0, good.size() / 2)}) {
    forge(checkpoint, "trainer.json", content);
    expect_error(kda({"train", "--resume", run, "--steps", "40"}), 1, "train", {"trainer.json"});
  }
  forge(checkpoint, "trainer.json", good);
  forge(checkpoint, "config.json", "{\"model_type\": \"kda\", \"vocab_size\": -5}");
  expect_error(kda({"generate", "--ckpt", checkpoint.string(), "--prompt", "x"}), 1, "generate",
               {"config.json", "hidden_size"});
}

TEST(Files, WeightsOfAnotherModel_AreNamed) {
  const std::string run = checkpoint_copy("misfit");
  const fs::path checkpoint = fs::path(run) / "step-000030";
  std::string config = io::read_file(checkpoint / "config.json");
  const std::string width = "\"intermediate_size\": ";
  config.insert(config.find(width) + width.size(), "1");
  forge(checkpoint, "config.json", config);
  expect_error(kda({"generate", "--ckpt", checkpoint.string(), "--prompt", "x"}), 1, "generate",
               {"misfit", "do not fit", "layers.0", "expected ["});
  const ProgramResult verify = kda({"ckpt", "verify", checkpoint.string()});
  EXPECT_EQ(verify.exit_code, 1) << verify.out;
  EXPECT_TRUE(verify.err.find("do not fit") != std::string::npos) << verify.err;
}

TEST(Files, DamagedCheckpoint_FallsBackOrSaysSo) {
  const std::string run = checkpoint_copy("damaged");
  const fs::path newest = fs::path(run) / "step-000030/model.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 1);
  const ProgramResult ls = kda({"ckpt", "ls", run});
  EXPECT_EQ(ls.exit_code, 1);
  EXPECT_NE(ls.out.find("BROKEN"), std::string::npos) << ls.out;
  const ProgramResult generate =
      kda({"generate", "--ckpt", run, "--prompt", "The ", "--max-new-tokens", "3"});
  EXPECT_EQ(generate.exit_code, 0) << generate.err;
  EXPECT_NE(generate.err.find("warning: checkpoint"), std::string::npos) << generate.err;
  EXPECT_NE(generate.err.find("step-000030"), std::string::npos);
  expect_error(kda({"generate", "--ckpt", newest.parent_path().string(), "--prompt", "x"}), 1,
               "generate", {"broken checkpoint", "model.safetensors"});
}

TEST(Files, NanWeights_StopGenerationNamingTheLayer) {
  const std::string run = checkpoint_copy("nan");
  const fs::path checkpoint = fs::path(run) / "step-000030";
  std::string bytes = io::read_file(checkpoint / "model.safetensors");
  // The last tensor's last value: some weight late in the file becomes NaN.
  bytes.replace(bytes.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  forge(checkpoint, "model.safetensors", bytes);
  const ProgramResult generate =
      kda({"generate", "--ckpt", checkpoint.string(), "--prompt", "The clerk"});
  EXPECT_EQ(generate.exit_code, 3) << generate.err;
  EXPECT_NE(generate.err.find("error: "), std::string::npos) << generate.err;
  const ProgramResult ppl =
      kda({"eval", "ppl", "--ckpt", checkpoint.string(), "--text", testing::corpus().string()});
  EXPECT_EQ(ppl.exit_code, 3) << ppl.err;
  EXPECT_EQ(ppl.out.find("cross entropy"), std::string::npos) << ppl.out;
  const ProgramResult verify = kda({"ckpt", "verify", checkpoint.string()});
  EXPECT_EQ(verify.exit_code, 1);
  EXPECT_NE(verify.err.find("not finite"), std::string::npos) << verify.err;
}

TEST(Files, RunBeyondMemory_IsRefusedAndLeavesNothing) {
  const fs::path out = fresh_folder("hopeless") / "run";
  expect_error(kda({"train", "--data", testing::corpus().string(), "--tokenizer",
                    testing::tokenizer_file().string(), "--preset", "tiny", "--steps", "1",
                    "--batch", "1000000", "--seq-len", "8192", "--out", out.string()}),
               2, "train",
               {"--batch, --seq-len: expected a run that fits into memory", "are available"});
  EXPECT_FALSE(fs::exists(out));
}

TEST(Files, UnwritableRunFolder_IsAnErrorBeforeTraining) {
  const ProgramResult inside_proc = kda(train_arguments("/proc/kda-run", 5));
  expect_error(inside_proc, 1, "train", {"/proc/kda-run"});
  write_text(testing::scratch() / "a-file", "x");
  expect_error(kda(train_arguments(testing::scratch() / "a-file/run", 5)), 1, "train",
               {"a-file/run"});
}

}  // namespace
}  // namespace kda::cli
