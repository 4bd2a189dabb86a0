/// Reads a JSON object field by field so that typing errors cannot pass as defaults.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"

namespace kda::io {

/// Key of `known` that is most like `word`, or "" if none is close (edit distance over a third of
/// the length, at least 2). For "unknown key" messages here and in the program.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

/// One object of a configuration. `read_*` takes a value if the key is present and leaves the
/// target (the default) alone otherwise; `require_*` fails when it is absent. Values of the wrong
/// type or range and, in `finish()`, keys that nobody asked for are Error(kInvalidArgument) whose
/// text starts with the full key path: `model.moe.experts: expected an integer in [1, 65536], got
/// 0`.
///
///   ConfigReader r(json, "model");
///   r.read_int("layers", config.layers, 1, 1024);
///   auto moe = r.object("moe");  // empty object if absent
///   moe.read_int("experts", config.experts, 1, 65536);
///   moe.finish();
///   r.finish();
class ConfigReader {
 public:
  /// `value` must outlive the reader. `path` is the prefix shown in errors, "" for the top.
  ConfigReader(const Json& value, std::string path);

  bool has(std::string_view key) const;

  template <class Int>
  void read_int(std::string_view key, Int& target,
                std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                std::int64_t max = std::numeric_limits<std::int64_t>::max()) {
    if (auto v = int_or_nothing(key, clamp_low<Int>(min), clamp_high<Int>(max))) {
      target = static_cast<Int>(*v);
    }
  }
  /// Finite numbers only; integers are accepted.
  template <class Float>
  void read_number(std::string_view key, Float& target,
                   double min = std::numeric_limits<double>::lowest(),
                   double max = std::numeric_limits<double>::max()) {
    if (auto v = number_or_nothing(key, min, max)) target = static_cast<Float>(*v);
  }
  void read_bool(std::string_view key, bool& target);
  void read_string(std::string_view key, std::string& target);
  /// A string out of `choices`; returns its index, or nothing when the key is absent.
  std::optional<std::size_t> read_choice(std::string_view key,
                                         std::span<const std::string_view> choices);
  void read_ints(std::string_view key, std::vector<std::int64_t>& target,
                 std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                 std::int64_t max = std::numeric_limits<std::int64_t>::max());
  void read_strings(std::string_view key, std::vector<std::string>& target);

  std::int64_t require_int(std::string_view key,
                           std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                           std::int64_t max = std::numeric_limits<std::int64_t>::max());
  std::uint64_t require_uint64(std::string_view key);
  double require_number(std::string_view key);
  bool require_bool(std::string_view key);
  std::string require_string(std::string_view key);

  /// Reader of a nested object; of an empty one when the key is absent.
  ConfigReader object(std::string_view key);
  /// The raw value, or null when absent; counts as asked for.
  const Json* raw(std::string_view key);

  /// Fails if the object has a key that was never asked for, and names the nearest known one.
  void finish() const;

  /// Error(kInvalidArgument) `<path>.<key>: <message>`, for checks that span several keys.
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

 private:
  template <class Int>
  static std::int64_t clamp_low(std::int64_t min) {
    if constexpr (std::cmp_greater(std::numeric_limits<Int>::min(),
                                   std::numeric_limits<std::int64_t>::min())) {
      return std::max(min, static_cast<std::int64_t>(std::numeric_limits<Int>::min()));
    }
    return min;
  }
  template <class Int>
  static std::int64_t clamp_high(std::int64_t max) {
    if constexpr (std::cmp_less(std::numeric_limits<Int>::max(),
                                std::numeric_limits<std::int64_t>::max())) {
      return std::min(max, static_cast<std::int64_t>(std::numeric_limits<Int>::max()));
    }
    return max;
  }
  std::optional<std::int64_t> int_or_nothing(std::string_view key, std::int64_t min,
                                             std::int64_t max);
  std::optional<double> number_or_nothing(std::string_view key, double min, double max);
  const Json& require(std::string_view key);
  std::string path_of(std::string_view key) const;

  const Json* value_;
  std::string path_;
  std::vector<std::string> known_;
};

}  // namespace kda::io
