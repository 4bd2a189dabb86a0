#include "view/viewer.h"

#include "io/json.h"
#include "view/page_api.h"
#include "view_test_support.h"

namespace kda::view {
namespace {

using io::Json;
using test::expect_error;
using test::put;
using test::TempFolder;
using testing::kTraceText;
using testing::write_counting;
using Parameters = std::multimap<std::string, std::string>;

/// A viewer of one file of every kind.
class ViewerTest : public ::testing::Test {
 protected:
  ViewerTest() {
    write_counting(folder_ / "a.safetensors",
                   {{"m", {2, 3}},
                    {"cube", {2, 3, 4}},
                    {"long", {3000000}},
                    {"empty", {0, 2}},
                    {"<b>\"", {1}}},
                   {{"format", "pt"}});
    put(folder_ / "t.json", kTraceText);
    put(folder_ / "m.jsonl", "{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    viewer_ = std::make_unique<Viewer>(
        std::vector{folder_ / "a.safetensors", folder_ / "t.json", folder_ / "m.jsonl"},
        ViewerOptions{});
  }

  Reply ask(const std::string& path, const Parameters& parameters = {}) const {
    Query query;
    query.method = "GET";
    query.path = path;
    query.parameters = parameters;
    query.host = "localhost";
    return viewer_->respond(query);
  }
  Json json(const std::string& path, const Parameters& parameters = {}) const {
    const Reply reply = ask(path, parameters);
    EXPECT_EQ(reply.status, 200) << path << ": " << reply.body;
    return Json::parse(reply.body);
  }
  void expect_refused(int status, const std::string& part, const std::string& path,
                      const Parameters& parameters) const {
    const Reply reply = ask(path, parameters);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json body = Json::parse(reply.body);
    ASSERT_TRUE(body.contains("error")) << reply.body;
    EXPECT_NE(body["error"].get<std::string>().find(part), std::string::npos) << reply.body;
  }

  TempFolder folder_;
  std::unique_ptr<Viewer> viewer_;
};

TEST_F(ViewerTest, TensorLens_ConfigAndList) {
  const Json config = json("/api/config");
  EXPECT_EQ(config["status"], "ok");
  for (const char* key : {"max_points", "point_size", "refresh_interval"}) {
    EXPECT_TRUE(config[key].is_number()) << key;
  }
  EXPECT_EQ(config["disable_transforms"], false);
  const Json list = json("/api/list_tensors");
  EXPECT_EQ(list["count"], 5);
  EXPECT_EQ(list["available_tensors"][0],
            Json::parse(R"({"key": "m", "name": "m", "shape": [2, 3]})"));
  EXPECT_EQ(list["available_tensors"][4]["key"], "<b>\"");
}

TEST_F(ViewerTest, TensorLens_GetTensor) {
  const Json whole = json("/api/get_tensor", {{"tensor_key", "m"}});
  EXPECT_EQ(whole["tensor_key"], "m");
  EXPECT_EQ(whole["dims"], 2);
  EXPECT_EQ(whole["shape"], Json::parse("[2, 3]"));
  EXPECT_EQ(whole["data"], Json::parse("[[0, 127, 127], [127, 127, 127]]"));
  EXPECT_TRUE(whole["reduced"].is_null());
  const Json viewed =
      json("/api/get_tensor",
           {{"tensor_key", "m"}, {"code", "abs(tensor).T[1:]"}, {"normalization", "minmax"}});
  // (x / 5 * 255 - 128), rounded to zero, without sign; statistics are of the whole tensor.
  EXPECT_EQ(viewed["data"], Json::parse("[[77, 76], [26, 127]]"));
  const Json ranged =
      json("/api/get_tensor", {{"tensor_key", "m"}, {"code", "tensor[0]"}, {"range", "-4,4"}});
  EXPECT_EQ(ranged["data"], Json::parse("[0, 31, 63]"));
  EXPECT_EQ(json("/api/get_tensor", {{"tensor_key", "m"}, {"code", "tensor[1,2]"}})["data"], 127);
  EXPECT_EQ(json("/api/get_tensor", {{"tensor_key", "empty"}})["data"], Json::array());
}

TEST_F(ViewerTest, TensorLens_LargeTensor_IsSampledAndItIsSaid) {
  const Json reply = json("/api/get_tensor", {{"tensor_key", "long"}});
  EXPECT_EQ(reply["shape"], Json::parse("[1000000]"));
  EXPECT_EQ(reply["data"].size(), 1000000U);
  EXPECT_EQ(reply["reduced"], Json::parse(R"({"from_shape": [3000000], "every": [3]})"));
}

TEST_F(ViewerTest, TensorLens_BadRequests) {
  expect_refused(400, "tensor_key", "/api/get_tensor", {});
  expect_refused(404, "nothing", "/api/get_tensor", {{"tensor_key", "nothing"}});
  expect_refused(400, "code", "/api/get_tensor", {{"tensor_key", "m"}, {"code", "exit()"}});
  expect_refused(400, "reshape", "/api/get_tensor",
                 {{"tensor_key", "m"}, {"code", "tensor.reshape(7)"}});
  expect_refused(400, "normalization", "/api/get_tensor",
                 {{"tensor_key", "m"}, {"normalization", "x"}});
  for (const char* range : {"1", "1,", ",1", "a,b", "1,2,3", "2,1", "0,0", "nan,1", "-inf,inf"}) {
    expect_refused(400, "range", "/api/get_tensor", {{"tensor_key", "m"}, {"range", range}});
  }
}

TEST_F(ViewerTest, RawFiles_OnlyNamedOnes) {
  const Reply reply = ask("/tensorlens/a.safetensors");
  EXPECT_EQ(reply.status, 200);
  ASSERT_TRUE(reply.file.has_value());
  EXPECT_EQ(*reply.file, folder_ / "a.safetensors");
  for (const char* name : {"../a.safetensors", "..%2fa.safetensors", "/etc/passwd", "", "b",
                           "a.safetensors/../../etc/passwd"}) {
    EXPECT_EQ(ask(std::string("/tensorlens/") + name).status, 404) << name;
  }
}

TEST_F(ViewerTest, Tensor_ChosenAxesAndIndices) {
  const Json last = json("/view/tensor", {{"key", "cube"}, {"at", "1,0,0"}});
  EXPECT_EQ(last["axes"], Json::parse("[1, 2]"));
  EXPECT_EQ(last["mean"], Json::parse("[[12,13,14,15],[16,17,18,19],[20,21,22,23]]"));
  EXPECT_TRUE(last["reduced"].is_null());
  EXPECT_EQ(last["statistics"]["max"], 23);
  const Json turned = json("/view/tensor", {{"key", "cube"}, {"axes", "2,0"}, {"at", "0,2,0"}});
  EXPECT_EQ(turned["mean"], Json::parse("[[8,20],[9,21],[10,22],[11,23]]"));
  const Json window =
      json("/view/tensor", {{"key", "cube"}, {"axes", "2"}, {"at", "1,1,0"}, {"window", "1:3"}});
  EXPECT_EQ(window["mean"], Json::parse("[17, 18]"));
  EXPECT_EQ(window["window"], Json::parse("[[1, 3]]"));
  const Json volume = json("/view/tensor", {{"key", "cube"}, {"axes", "0,1,2"}, {"cells", "6"}});
  EXPECT_LE(
      volume["cells"][0].get<int>() * volume["cells"][1].get<int>() * volume["cells"][2].get<int>(),
      6);
  EXPECT_TRUE(volume["reduced"].is_string());
  EXPECT_TRUE(volume["low"].is_array());
}

TEST_F(ViewerTest, Tensor_Large_IsReducedToTheLimitAndItIsSaid) {
  const Json reply = json("/view/tensor", {{"key", "long"}});
  EXPECT_LE(reply["mean"].size(), static_cast<std::size_t>(kDefaultCells));
  EXPECT_GT(reply["mean"].size(), static_cast<std::size_t>(kDefaultCells) / 3);
  EXPECT_NE(reply["reduced"].get<std::string>().find("blocks"), std::string::npos);
  EXPECT_EQ(reply["statistics"]["elements"], 3000000);
}

TEST_F(ViewerTest, Tensor_BadRequests) {
  const auto refused = [&](int status, const std::string& part, Parameters parameters) {
    parameters.emplace("key", "cube");
    expect_refused(status, part, "/view/tensor", parameters);
  };
  expect_refused(404, "key", "/view/tensor", {});
  for (const char* axes : {"3", "-1", "0,0", "0,1,2,0", "a", "1,", ",", "99999999999999999999"}) {
    refused(400, "axes", {{"axes", axes}});
  }
  for (const char* at : {"2,0,0", "-1,0,0", "0,0,0,0"}) {
    refused(400, "at", {{"axes", "2"}, {"at", at}});
  }
  for (const char* window : {"0", "3:1", "0:5", "-1:2", "0:1,0:1", "x:y"}) {
    refused(400, "window", {{"axes", "2"}, {"window", window}});
  }
  for (const char* cells : {"0", "-1", "1e9", "262145", "x"}) {
    refused(400, "cells", {{"cells", cells}});
  }
}

TEST_F(ViewerTest, FilesTraceMetrics) {
  const Json files = json("/view/files");
  ASSERT_EQ(files["files"].size(), 3U);
  EXPECT_EQ(files["files"][0]["kind"], "tensors");
  EXPECT_EQ(files["files"][0]["metadata"]["format"], "pt");
  EXPECT_EQ(files["files"][0]["tensors"][0]["bytes"], 24);
  EXPECT_EQ(files["files"][1]["nodes"], 4);
  EXPECT_EQ(json("/view/trace", {{"file", "t.json"}})["phases"].size(), 2U);
  EXPECT_EQ(json("/view/graph", {{"file", "t.json"}, {"phase", "1"}})["label"].size(), 1U);
  EXPECT_EQ(json("/view/node", {{"file", "t.json"}, {"label", "input_1_0:1"}})["kind"], "input");
  EXPECT_EQ(json("/view/metrics", {{"file", "m.jsonl"}})["series"][0]["name"], "step.loss");
  expect_refused(404, "no trace", "/view/graph", {{"file", "m.jsonl"}});
  expect_refused(404, "no metrics", "/view/metrics", {{"file", "t.json"}});
  expect_refused(404, "label", "/view/node", {{"file", "t.json"}, {"label", "x"}});
  expect_refused(400, "phase", "/view/graph", {{"file", "t.json"}, {"phase", "2"}});
}

TEST_F(ViewerTest, Metrics_AreReadAnew) {
  put(folder_ / "m.jsonl",
      "{\"kind\":\"step\",\"step\":1,\"loss\":2}\n{\"kind\":\"step\",\"step\":2,\"loss\":1}\n");
  EXPECT_EQ(json("/view/metrics", {{"file", "m.jsonl"}})["records"], 2);
  std::filesystem::remove(folder_ / "m.jsonl");
  EXPECT_EQ(ask("/view/metrics", {{"file", "m.jsonl"}}).status, 500);
}

TEST_F(ViewerTest, Page_IsInTheProgramAndAsksNobodyElse) {
  const Reply page = ask("/");
  ASSERT_EQ(page.status, 200);
  EXPECT_EQ(page.type, "text/html; charset=utf-8");
  EXPECT_NE(page.asset.find("kda view"), std::string_view::npos);
  for (const char* path : {"/", "/page/style.css", "/page/main.js", "/page/api.js",
                           "/page/charts.js", "/page/graph.js", "/page/graph_layout.js",
                           "/page/tensors.js", "/page/quantities.js", "/page/metrics.js"}) {
    const Reply reply = ask(path);
    ASSERT_EQ(reply.status, 200) << path;
    std::string text(reply.asset);
    // The name of the SVG namespace is no address.
    if (const auto at = text.find("http://www.w3.org/2000/svg"); at != std::string::npos) {
      text.erase(at, 7);
    }
    EXPECT_EQ(text.find("http://"), std::string::npos) << path;
    EXPECT_EQ(text.find("https://"), std::string::npos) << path;
  }
  EXPECT_GT(ask("/page/plotly.js").asset.size(), 1000000U);
  EXPECT_EQ(ask("/page/").status, 404);
  EXPECT_EQ(ask("/page/../main.js").status, 404);
}

TEST_F(ViewerTest, Refusals_ComeFirst) {
  Query query;
  query.method = "POST";
  query.path = "/api/config";
  query.host = "localhost";
  EXPECT_EQ(viewer_->respond(query).status, 405);
  query.method = "GET";
  query.host = "evil.example";
  EXPECT_EQ(viewer_->respond(query).status, 403);
}

TEST(Viewer, BadOptions_AreRefused) {
  const TempFolder folder;
  write_counting(folder / "a.safetensors", {{"w", {1}}});
  ViewerOptions options;
  options.tensorlens.max_points = 0;
  expect_error(ErrorCode::kInvalidArgument, {"max_points"},
               [&] { Viewer v({folder / "a.safetensors"}, options); });
  options.tensorlens.max_points = 1;
  options.tensorlens.rule.low = 2;
  expect_error(ErrorCode::kInvalidArgument, {"range"},
               [&] { Viewer v({folder / "a.safetensors"}, options); });
}

}  // namespace
}  // namespace kda::view
