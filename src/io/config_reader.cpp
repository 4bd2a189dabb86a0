#include "io/config_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string " + escaped(value.get_ref<const std::string&>(), 80);
    default:
      return value.dump();  // numbers and booleans as written
  }
}

std::string range_text(std::int64_t min, std::int64_t max) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  if (min == kMin && max == kMax) return "an integer";
  if (max == kMax) return "an integer >= " + std::to_string(min);
  if (min == kMin) return "an integer <= " + std::to_string(max);
  return "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]";
}

std::string range_text(double min, double max) {
  const bool low = min > std::numeric_limits<double>::lowest();
  const bool high = max < std::numeric_limits<double>::max();
  const auto number = [](double v) { return Json(v).dump(); };
  if (low && high) return "a number in [" + number(min) + ", " + number(max) + "]";
  if (low) return "a number >= " + number(min);
  if (high) return "a number <= " + number(max);
  return "a finite number";
}

/// The value as int64 if it is an integer in range.
std::optional<std::int64_t> as_int(const Json& value, std::int64_t min, std::int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return std::nullopt;
  }
  const auto v = value.get<std::int64_t>();
  if (v < min || v > max) return std::nullopt;
  return v;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substitute});
    }
  }
  return row.back();
}

const Json& empty_object() {
  static const Json kEmpty = Json::object();
  return kEmpty;
}

}  // namespace

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  if (word.size() > 200) return "";  // the distance costs the product of the lengths
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

ConfigReader::ConfigReader(const Json& value, std::string path)
    : value_(&value), path_(std::move(path)) {
  if (!value.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, (path_.empty() ? "configuration" : path_) +
                                                 ": expected an object, got " + kind_of(value));
  }
}

std::string ConfigReader::path_of(std::string_view key) const {
  std::string path = path_;
  if (!path.empty() && !key.empty()) path += '.';
  path += key;
  return path;
}

void ConfigReader::fail(std::string_view key, std::string_view message) const {
  throw Error(ErrorCode::kInvalidArgument, path_of(key) + ": " + std::string(message));
}

bool ConfigReader::has(std::string_view key) const { return value_->contains(key); }

const Json* ConfigReader::raw(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const auto it = value_->find(key);
  return it == value_->end() ? nullptr : &*it;
}

const Json& ConfigReader::require(std::string_view key) {
  const Json* value = raw(key);
  if (value == nullptr) fail(key, "missing");
  return *value;
}

std::optional<std::int64_t> ConfigReader::int_or_nothing(std::string_view key, std::int64_t min,
                                                         std::int64_t max) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  const auto v = as_int(*value, min, max);
  if (!v) fail(key, "expected " + range_text(min, max) + ", got " + kind_of(*value));
  return v;
}

std::optional<double> ConfigReader::number_or_nothing(std::string_view key, double min,
                                                      double max) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  const double v = value->is_number() ? value->get<double>() : std::nan("");
  if (!std::isfinite(v) || v < min || v > max) {
    fail(key, "expected " + range_text(min, max) + ", got " + kind_of(*value));
  }
  return v;
}

void ConfigReader::read_bool(std::string_view key, bool& target) {
  if (raw(key) != nullptr) target = require_bool(key);
}

void ConfigReader::read_string(std::string_view key, std::string& target) {
  if (raw(key) != nullptr) target = require_string(key);
}

std::optional<std::size_t> ConfigReader::read_choice(std::string_view key,
                                                     std::span<const std::string_view> choices) {
  const Json* value = raw(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const auto it = std::find(choices.begin(), choices.end(), value->get_ref<const std::string&>());
    if (it != choices.end()) return static_cast<std::size_t>(it - choices.begin());
  }
  std::string list;
  for (const auto choice : choices)
    list += (list.empty() ? "" : ", ") + escaped(choice);
  fail(key, "expected one of " + list + ", got " + kind_of(*value));
}

void ConfigReader::read_ints(std::string_view key, std::vector<std::int64_t>& target,
                             std::int64_t min, std::int64_t max) {
  const Json* value = raw(key);
  if (value == nullptr) return;
  if (!value->is_array()) fail(key, "expected an array of integers, got " + kind_of(*value));
  std::vector<std::int64_t> list;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const auto v = as_int((*value)[i], min, max);
    if (!v) {
      fail(std::string(key) + "[" + std::to_string(i) + "]",
           "expected " + range_text(min, max) + ", got " + kind_of((*value)[i]));
    }
    list.push_back(*v);
  }
  target = std::move(list);
}

void ConfigReader::read_strings(std::string_view key, std::vector<std::string>& target) {
  const Json* value = raw(key);
  if (value == nullptr) return;
  if (!value->is_array()) fail(key, "expected an array of strings, got " + kind_of(*value));
  std::vector<std::string> list;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& item = (*value)[i];
    if (!item.is_string()) {
      fail(std::string(key) + "[" + std::to_string(i) + "]",
           "expected a string, got " + kind_of(item));
    }
    list.push_back(item.get<std::string>());
  }
  target = std::move(list);
}

std::int64_t ConfigReader::require_int(std::string_view key, std::int64_t min, std::int64_t max) {
  require(key);
  return *int_or_nothing(key, min, max);
}

std::uint64_t ConfigReader::require_uint64(std::string_view key) {
  const Json& value = require(key);
  if (!value.is_number_unsigned()) {
    fail(key, "expected an integer in [0, 2^64), got " + kind_of(value));
  }
  return value.get<std::uint64_t>();
}

double ConfigReader::require_number(std::string_view key) {
  require(key);
  return *number_or_nothing(key, std::numeric_limits<double>::lowest(),
                            std::numeric_limits<double>::max());
}

bool ConfigReader::require_bool(std::string_view key) {
  const Json& value = require(key);
  if (!value.is_boolean()) fail(key, "expected true or false, got " + kind_of(value));
  return value.get<bool>();
}

std::string ConfigReader::require_string(std::string_view key) {
  const Json& value = require(key);
  if (!value.is_string()) fail(key, "expected a string, got " + kind_of(value));
  return value.get<std::string>();
}

ConfigReader ConfigReader::object(std::string_view key) {
  const Json* value = raw(key);
  return ConfigReader(value == nullptr ? empty_object() : *value, path_of(key));
}

void ConfigReader::finish() const {
  for (const auto& item : value_->items()) {
    if (std::find(known_.begin(), known_.end(), item.key()) != known_.end()) continue;
    std::string text =
        (path_.empty() ? "configuration" : path_) + ": unknown key " + escaped(item.key(), 80);
    if (const auto near = nearest_word(item.key(), known_); !near.empty()) {
      text += "; did you mean " + escaped(near) + "?";
    }
    throw Error(ErrorCode::kInvalidArgument, text);
  }
}

}  // namespace kda::io
