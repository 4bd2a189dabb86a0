/// Any bytes as a request to the viewer, through the HTTP parser to the endpoints and back.
#include <filesystem>
#include <memory>
#include <string>

#include "fuzz_target.h"
#include "io/safetensors_writer.h"
#include "scratch_folder.h"
#include "view/http_exchange.h"
#include "view/viewer.h"

namespace {

constexpr std::string_view kTrace =
    R"({"format": "kda-trace", "version": 1, "tokens": [], "modules": [],
 "phases": [{"kind": "forward", "first_node": 0, "last_node": 1}],
 "nodes": [{"label": "a", "function": "f", "kind": "input", "phase": 0, "module": "",
            "parents": ["a"], "stage_of": null}]})";

const std::uint8_t* as_bytes(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

/// One file of each kind, and the viewer of them.
class World {
 public:
  World() {
    const std::vector<kda::io::StSpec> specs{{"a", kda::io::StDtype::kF32, {2, 3, 4}},
                                             {"b", kda::io::StDtype::kI8, {}},
                                             {"c", kda::io::StDtype::kBF16, {0, 5}}};
    const auto tensors = folder_.path() / "t.safetensors";
    kda::io::SafetensorsWriter writer(tensors, specs);
    writer.write(std::vector<std::byte>(2 * 3 * 4 * 4 + 1, std::byte{0x3f}));
    writer.commit();
    constexpr std::string_view kMetrics = "{\"kind\":\"step\",\"step\":1,\"loss\":2}\n";
    const std::vector<std::filesystem::path> paths{
        tensors, folder_.put("t.json", as_bytes(kTrace), kTrace.size()),
        folder_.put("m.jsonl", as_bytes(kMetrics), kMetrics.size())};
    viewer_ = std::make_unique<kda::view::Viewer>(paths, kda::view::ViewerOptions{});
  }
  const kda::view::Viewer& viewer() const { return *viewer_; }

 private:
  kda::fuzz::ScratchFolder folder_{"view_request"};
  std::unique_ptr<kda::view::Viewer> viewer_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  static const World kWorld;
  static const kda::view::HttpExchange kHttp([](const kda::view::Query& query) {
    const kda::view::Reply reply = kWorld.viewer().respond(query);
    // Hostile requests are refused, never a failure of the server.
    require(reply.status == 200 || (reply.status >= 400 && reply.status < 500));
    require(!reply.file || reply.file->filename() == "t.safetensors" ||
            reply.file->filename() == "t.json" || reply.file->filename() == "m.jsonl");
    return reply;
  });
  std::string response;
  kHttp.run(kda::fuzz::as_text(data, size), [&](std::string_view bytes) {
    response += bytes;
    return true;
  });
  require(response.empty() || response.starts_with("HTTP/1.1 "));
  return 0;
}
