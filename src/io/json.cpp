#include "io/json.h"

#include <set>
#include <vector>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

/// The parser keeps the last of two equal keys and nests without end, so both are checked in its
/// callback.
template <class AnyJson>
AnyJson parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  const auto fail = [what](const std::string& reason) {
    throw Error(ErrorCode::kIo, std::string(what) + ": " + reason);
  };
  if (text.size() > limits.max_bytes) {
    fail(std::to_string(text.size()) + " bytes of JSON, at most " +
         std::to_string(limits.max_bytes) + " expected");
  }
  std::vector<std::set<std::string, std::less<>>> keys;  // of the open objects, outermost first
  using Event = typename AnyJson::parse_event_t;
  const auto watch = [&](int depth, Event event, AnyJson& parsed) {
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (static_cast<std::size_t>(depth) >= limits.max_depth) {
          fail("nested deeper than " + std::to_string(limits.max_depth) + " levels");
        }
        keys.emplace_back();
        break;
      case Event::object_end:
      case Event::array_end:
        keys.pop_back();
        break;
      case Event::key: {
        const auto& key = parsed.template get_ref<const std::string&>();
        if (!keys.back().insert(key).second) fail("key " + escaped(key) + " appears twice");
        if (keys.back().size() > limits.max_keys) {
          fail("an object has more than " + std::to_string(limits.max_keys) + " keys");
        }
        break;
      }
      case Event::value:
        break;
    }
    return true;
  };
  try {
    return AnyJson::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."; the tag says nothing
    // to a reader, and the rest may quote the input.
    std::string_view reason = e.what();
    if (const auto end = reason.find("] "); end != std::string_view::npos) {
      reason.remove_prefix(end + 2);
    }
    fail("not valid JSON: " + escaped(reason, 300));
  }
  throw Error(ErrorCode::kInternal, "parse_json: unreachable");
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<Json>(text, what, limits);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view what, JsonLimits limits) {
  limits.max_keys = text.size();
  return parse<SortedJson>(text, what, limits);
}

Json read_json_file(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_file(path, limits.max_bytes), escaped(path.string()), limits);
}

void write_json_file(const std::filesystem::path& path, const Json& value) {
  write_file_atomic(path, value.dump(2) + "\n");
}

}  // namespace kda::io
