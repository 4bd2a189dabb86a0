#include "view/trace.h"

#include <functional>

#include "view_test_support.h"

namespace kda::view {
namespace {

using io::Json;
using test::expect_error;
using testing::kTraceText;

TEST(Trace, GraphOfAPhase_HasParentsAsIndices) {
  const Trace trace(kTraceText, "t");
  EXPECT_EQ(trace.num_nodes(), 4U);
  const Json forward = Json::parse(trace.graph_json(0));
  EXPECT_EQ(forward["label"], (Json{"input_1_0:1", "chunk_kda_1_1:1", "chunk_kda_1_1:1/gate"}));
  EXPECT_EQ(forward["parents"], Json::parse("[[], [0], []]"));
  EXPECT_EQ(forward["stage_of"], Json::parse("[-1, -1, 1]"));
  EXPECT_EQ(forward["shape"], Json::parse("[[3], null, null]"));
  EXPECT_EQ(forward["duration_ns"], Json::parse("[null, 5, null]"));
  EXPECT_TRUE(forward["reduced"].is_null());
  // A parent of another phase is not in this reply.
  EXPECT_EQ(Json::parse(trace.graph_json(1))["parents"], Json::parse("[[]]"));
  expect_error(ErrorCode::kInvalidArgument, {"phase", "2"}, [&] { trace.graph_json(2); });
  expect_error(ErrorCode::kInvalidArgument, {"phase"}, [&] { trace.graph_json(-1); });
}

TEST(Trace, Node_IsAsInTheFile) {
  const Trace trace(kTraceText, "t");
  EXPECT_EQ(Json::parse(trace.node_json("chunk_kda_1_1:1"))["duration_ns"], 5);
  EXPECT_EQ(trace.node_json("nothing"), "");
}

TEST(Trace, Overview_HasNoNodes) {
  const Json overview = Json::parse(Trace(kTraceText, "t").overview_json());
  EXPECT_EQ(overview["phases"].size(), 2U);
  EXPECT_TRUE(overview["validation"].is_null());
  EXPECT_FALSE(overview.contains("nodes"));
}

TEST(Trace, ManyNodes_AreCutAndItIsSaid) {
  Json document = Json::parse(kTraceText);
  const Json node = document["nodes"][0];
  document["nodes"] = Json::array();
  for (std::size_t i = 0; i <= kMaxGraphNodes; ++i) {
    document["nodes"].push_back(node);
    document["nodes"].back()["label"] = "n" + std::to_string(i);
  }
  document["phases"] = {
      {{"kind", "forward"}, {"first_node", 0}, {"last_node", kMaxGraphNodes + 1}}};
  const Json graph = Json::parse(Trace(document.dump(), "t").graph_json(0));
  EXPECT_EQ(graph["label"].size(), kMaxGraphNodes);
  EXPECT_EQ(graph["reduced"], "the first 20000 of 20001 operations");
}

TEST(Trace, WrongFields_AreNamed) {
  const auto refused = [](const std::string& part, const std::function<void(Json&)>& change) {
    Json document = Json::parse(kTraceText);
    change(document);
    expect_error(ErrorCode::kIo, {"t.json", part}, [&] { Trace t(document.dump(), "t.json"); });
  };
  refused("format", [](Json& d) { d["format"] = "other"; });
  refused("version: expected 1", [](Json& d) { d["version"] = 2; });
  refused("nodes is missing", [](Json& d) { d.erase("nodes"); });
  refused("last_node", [](Json& d) { d["phases"][0]["last_node"] = 5; });
  refused("first_node", [](Json& d) { d["phases"][0]["first_node"] = 4; });
  refused("first_node", [](Json& d) { d["phases"][0]["first_node"] = -1; });
  refused("occurs twice", [](Json& d) { d["nodes"][1]["label"] = "input_1_0:1"; });
  refused("list of modules", [](Json& d) { d["nodes"][1]["module"] = "elsewhere"; });
  refused("does not come before", [](Json& d) { d["modules"][0]["parent"] = "model"; });
  refused("phase", [](Json& d) { d["nodes"][0]["phase"] = 2; });
  refused("parents", [](Json& d) { d["nodes"][1]["parents"] = {1}; });
  refused("stage_of", [](Json& d) { d["nodes"][1]["stage_of"] = 3; });
  refused("no stage", [](Json& d) { d["nodes"][1]["stage_of"] = "nothing"; });
  refused("no stage", [](Json& d) { d["nodes"][1]["stage_of"] = "chunk_kda_1_1:1/gate"; });
  refused("expected an object", [](Json& d) { d["nodes"][1] = 3; });
  refused("tokens", [](Json& d) { d["tokens"] = {{{"id", 1}}}; });
}

}  // namespace
}  // namespace kda::view
