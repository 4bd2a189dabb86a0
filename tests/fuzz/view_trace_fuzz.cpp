/// Any bytes as a trace file: refused, or every reply about it is JSON.
#include "fuzz_target.h"
#include "io/json.h"
#include "view/trace.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  kda::fuzz::refuse_or_pass([&] {
    const kda::view::Trace trace(kda::fuzz::as_text(data, size), "trace");
    const auto overview = kda::io::Json::parse(trace.overview_json());
    for (std::size_t phase = 0; phase < overview["phases"].size(); ++phase) {
      const auto graph = kda::io::Json::parse(trace.graph_json(static_cast<std::int64_t>(phase)));
      require(graph["parents"].size() == graph["label"].size());
      for (const auto& label : graph["label"]) {
        require(!trace.node_json(label.get<std::string>()).empty());
      }
    }
  });
  return 0;
}
