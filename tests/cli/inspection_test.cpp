#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/world.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using io::Json;
using testing::expect_error;
using testing::fresh_folder;
using testing::kda;
using testing::mentions;
using testing::ProgramResult;
using testing::trained_run;

using Words = std::vector<std::string>;

ProgramResult inspect(const std::string& verb, const Words& more) {
  Words words{verb, "--ckpt", trained_run().string(), "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return kda(words);
}

Json read_trace(const fs::path& path) {
  return io::read_json_file(path, {.max_depth = 32, .max_bytes = 64u << 20});
}

TEST(Inspection, Trace_WritesAValidatedGraph) {
  const fs::path folder = fresh_folder("trace");
  const std::string json = (folder / "t.json").string();
  const std::string dot = (folder / "t.dot").string();
  const ProgramResult result =
      inspect("trace", {"--text", "The clerk", "--validate", "--open", "all", "--statistics",
                        "--out", json, "--dot", dot});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, "0 different, 0 skipped")) << result.out;
  EXPECT_TRUE(mentions(result.out, "model.layers.0.self_attn")) << result.out;
  const Json trace = read_trace(json);
  EXPECT_EQ(trace["format"], "kda-trace");
  EXPECT_GT(trace["validation"]["equal"], 10);
  EXPECT_EQ(trace["tokens"].size(), trace["phases"][0]["num_tokens"]);
  EXPECT_FALSE(trace["tokens"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(trace["run"]["device"], "cpu");
  EXPECT_TRUE(io::read_file(dot).starts_with("digraph"));
  const ProgramResult nodes = inspect("trace", {"--text", "The clerk", "--nodes"});
  for (const Json& node : trace["nodes"]) {
    if (node["kind"] == "stage") continue;
    EXPECT_TRUE(mentions(nodes.out, node["label"])) << node["label"];
  }
  const ProgramResult printed = inspect("trace", {"--text", "The clerk", "--json"});
  EXPECT_EQ(Json::parse(printed.out)["nodes"][1]["label"], trace["nodes"][1]["label"]);
}

TEST(Inspection, Trace_DecodingAndBackward) {
  const ProgramResult decode =
      inspect("trace", {"--prompt", "The", "--decode", "3", "--validate", "--json"});
  ASSERT_EQ(decode.exit_code, 0) << decode.err;
  const Json steps = Json::parse(decode.out);
  EXPECT_EQ(steps["phases"].size(), 4U);
  EXPECT_EQ(steps["validation"]["different"], 0);
  EXPECT_EQ(steps["tokens"].size(), steps["phases"][0]["num_tokens"].get<std::size_t>() + 3);
  const ProgramResult backward =
      inspect("trace", {"--text", "The clerk counts", "--backward", "--validate", "--json"});
  ASSERT_EQ(backward.exit_code, 0) << backward.err;
  const Json training = Json::parse(backward.out);
  EXPECT_EQ(training["phases"][1]["kind"], "backward");
  EXPECT_EQ(training["results"][0]["name"], "loss");
  EXPECT_EQ(training["validation"]["different"], 0);
}

TEST(Inspection, Extract_WritesWhatIsNamed) {
  const fs::path folder = fresh_folder("extract");
  const std::string file = (folder / "t.safetensors").string();
  const ProgramResult result = inspect(
      "extract",
      {"--text", "The clerk", "--layers", "decay,layers.0,linear_1_*,-1,*/gate", "--out", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto tensors = io::SafetensorsFile::open(file);
  EXPECT_TRUE(tensors.contains("model.layers.0.self_attn.decay"));
  EXPECT_TRUE(tensors.contains("model.layers.0"));
  EXPECT_EQ(tensors.metadata().at("format"), "kda-extract");
  bool stage = false;
  for (const std::string& name : tensors.names())
    stage = stage || name.ends_with("/gate.g_ln");
  EXPECT_TRUE(stage);
  // Every name of the list can be asked for.
  const ProgramResult list = inspect("extract", {"--text", "The clerk", "--list"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_TRUE(mentions(list.out, "model.layers.1.self_attn.attention_map\n")) << list.out;
}

TEST(Inspection, Extract_SaysWhichTokensAValueIsOf) {
  const std::string file = (fresh_folder("decoded") / "t.safetensors").string();
  const ProgramResult result = inspect("extract", {"--ids", "5,6,7", "--decode", "2", "--layers",
                                                   "decay,embedding_1_1", "--out", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, "5 tokens:")) << result.out;
  const auto tensors = io::SafetensorsFile::open(file);
  const Json about = Json::parse(tensors.metadata().at("tensors"));
  const Json& decay = about["model.layers.0.self_attn.decay"];
  EXPECT_EQ(decay["first_token"], 0);
  EXPECT_EQ(decay["num_tokens"], 3) << "the prompt alone";
  EXPECT_EQ(about["embedding_1_1:3"]["first_token"], 4);
  EXPECT_EQ(about["embedding_1_1:3"]["num_tokens"], 1);
  const ProgramResult one = inspect("trace", {"--ids", "5", "--threads", "1"});
  EXPECT_TRUE(mentions(one.out, ", 1 thread\n1 token:")) << one.out;
}

TEST(Inspection, Ids_NeedNoTokenizer) {
  const fs::path folder = fresh_folder("ids");
  fs::path checkpoint;
  for (const auto& entry : fs::directory_iterator(trained_run()))
    if (entry.is_directory() && fs::exists(entry.path() / "model.safetensors"))
      checkpoint = entry.path();
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(checkpoint / name, folder / name);
  const ProgramResult result =
      kda({"trace", "--ckpt", folder.string(), "--ids", "5,6,7", "--device", "cpu", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json trace = Json::parse(result.out);
  EXPECT_EQ(trace["tokens"][2]["id"], 7);
  EXPECT_TRUE(trace["tokens"][2]["text"].is_null());
}

TEST(Inspection, Errors_AreOneLineAndNameTheNearest) {
  const auto refused = [&](const std::string& verb, const Words& more, const Words& parts) {
    const ProgramResult result = inspect(verb, more);
    expect_error(result, 2, verb, parts);
  };
  refused("extract",
          {"--text", "The", "--layers", "layers.0.self_atn", "--out", "/nowhere/x.safetensors"},
          {"layers.0.self_atn", "model.layers.0.self_attn"});
  refused("extract", {"--text", "The", "--layers", "decay"}, {"--out"});
  refused("extract", {"--text", "The"}, {"--layers", "--list"});
  const std::string file = (fresh_folder("refused") / "e.safetensors").string();
  refused("extract", {"--text", "The", "--layers", "decay", "--out", "e.json"},
          {"--out", ".safetensors", "e.json"});
  refused("extract", {"--text", "The", "--layers", ",", "--out", file},
          {"--layers: expected names, got \",\""});
  refused("extract",
          {"--ids", "1,2,3", "--backward", "--layers", "accumulate_grad_*", "--out", file},
          {"--layers", "accumulate_grad_*", "output"});
  EXPECT_FALSE(fs::exists(file));
  refused("trace", {}, {"--text", "--ids"});
  refused("trace", {"--text", "a", "--ids", "1"}, {"one of"});
  refused("trace", {"--text", ""}, {"--text"});
  refused("trace", {"--ids", "1,99999999"}, {"--ids", "99999999"});
  refused("trace", {"--ids", "1,x"}, {"--ids"});
  refused("trace", {"--ids", "1,2", "--decode", "1", "--backward"}, {"decode"});
  refused("trace", {"--ids", "1,2", "--only", "layers.0"}, {"--only", "--svg"});
  refused("trace", {"--ids", "1,2", "--open", "model.norm"}, {"--open", "chunk_kda"});
  refused("trace", {"--ids", "1,2", "--open", "nosuch"}, {"--open: 'nosuch'", "chunk_kda"});
  refused("trace", {"--ids", "1,2", "--only", "nosuch", "--dot", file},
          {"--only: nothing is called 'nosuch'; nearest:"});
  EXPECT_FALSE(fs::exists(file));
  const ProgramResult missing =
      inspect("trace", {"--ids", "1,2", "--out", "/nowhere/there/trace.json"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(mentions(missing.err, "--out")) << missing.err;
}

}  // namespace
}  // namespace kda::cli
