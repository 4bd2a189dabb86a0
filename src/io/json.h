/// Strict JSON: RFC 8259 text, valid UTF-8, no duplicate keys, bounded nesting.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kda::io {

/// Objects keep the order of their keys: files are written as a person would read them.
using Json = nlohmann::ordered_json;

/// For large or hostile input: keys sorted, so that no object costs quadratic time.
using SortedJson = nlohmann::json;

struct JsonLimits {
  std::size_t max_depth = 32;
  std::size_t max_bytes = 16u << 20;
  std::size_t max_keys = 1024;  ///< of one object; not applied by `parse_sorted_json`
};

/// Parses `text`; `what` names it in errors ("manifest", a path). Error(kIo) for bad JSON,
/// duplicate keys, nesting, keys or size over the limits. Numbers outside double's range are
/// refused.
Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});

/// The same for objects with any number of keys.
SortedJson parse_sorted_json(std::string_view text, std::string_view what, JsonLimits limits = {});

/// `parse_json` of a file's content.
Json read_json_file(const std::filesystem::path& path, JsonLimits limits = {});

/// Writes indented JSON atomically, with a final newline.
void write_json_file(const std::filesystem::path& path, const Json& value);

}  // namespace kda::io
