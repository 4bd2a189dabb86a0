#include <string>

#include "fuzz_target.h"
#include "io/config_reader.h"
#include "io/json.h"
#include "text/packing.h"

namespace {

void read_config(const kda::io::Json& json) {
  kda::io::ConfigReader reader(json, "model");
  int layers = 1;
  double rate = 0;
  bool tied = false;
  std::string name;
  std::vector<std::int64_t> list;
  std::vector<std::string> words;
  constexpr std::string_view kKinds[] = {"standard", "safe"};
  reader.read_int("layers", layers, 1, 64);
  reader.read_number("lr", rate, 0, 1);
  reader.read_bool("tied", tied);
  reader.read_string("name", name);
  reader.read_ints("list", list, 0, 10);
  reader.read_strings("words", words);
  reader.read_choice("kind", kKinds);
  auto inner = reader.object("moe");
  inner.read_int("experts", layers, 1, 8);
  inner.finish();
  reader.finish();
  kda::fuzz::require(layers >= 1 && layers <= 64 && rate >= 0 && rate <= 1);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = kda::fuzz::as_text(data, size);
  kda::fuzz::refuse_or_pass([&] { read_config(kda::io::parse_json(text, "fuzz")); });
  kda::fuzz::refuse_or_pass([&] {
    const auto json = kda::io::parse_json(text, "fuzz");
    const auto cursor = kda::text::cursor_from_json(json, "fuzz");
    kda::fuzz::require(kda::text::cursor_from_json(kda::text::to_json(cursor), "again") == cursor);
  });
  kda::fuzz::refuse_or_pass([&] {
    // What was accepted is JSON again when written.
    const auto json = kda::io::parse_sorted_json(text, "fuzz");
    kda::fuzz::require(kda::io::parse_sorted_json(json.dump(), "again") == json);
  });
  return 0;
}
