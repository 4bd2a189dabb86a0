/// Counts and periods with units, as people type them: "800", "8.2M", "200u", "1Mt", "2e".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kda::train {

/// Parses a count: a number with an optional suffix K (10^3), M (10^6), G or B (10^9), any case.
/// "1.5k" is 1500; a fraction that is not a whole number of units is refused.
/// Throws kInvalidArgument with `name` as the argument.
std::int64_t parse_count(std::string_view text, const std::string& name);

/// The same with an optional unit letter behind it: parse_budget("2Mt", 't', ...) is 2000000, "2M"
/// too; another unit is refused with what this count counts.
std::int64_t parse_budget(std::string_view text, char unit, const std::string& name);

/// What a period counts.
enum class PeriodUnit : std::uint8_t {
  kUpdates,  ///< optimizer steps, suffix u
  kTokens,   ///< training tokens read, suffix t
  kEpochs,   ///< passes over the training data, suffix e
};

/// "every N u|t|e". `every` 0 means never.
struct Period {
  std::int64_t every = 0;
  PeriodUnit unit = PeriodUnit::kUpdates;

  bool operator==(const Period&) const = default;
};

/// Where a run stands; what periods are measured against.
struct Position {
  std::int64_t updates = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_per_epoch = 0;  ///< 0 = unknown: epoch periods never fire
};

/// Parses "200", "200u", "1Mt", "1M t", "2e", "0" or "off". Throws kInvalidArgument.
Period parse_period(std::string_view text, const std::string& name);

/// "200u", "1000000t", "2e", "off": parse_period reads it back to the same value.
std::string to_string(const Period& period);

/// True when `now` has passed a multiple of the period that `before` had not.
bool is_due(const Period& period, const Position& before, const Position& now);

/// 1234 -> "1.23k", 8200000 -> "8.2M": three significant digits, for console lines.
std::string short_count(double value);
/// 1181116006 -> "1.1G" (powers of 1024).
std::string short_bytes(double bytes);
/// 65 -> "1m05s", 3700 -> "1h02m", 4 -> "4s".
std::string short_duration(double seconds);

}  // namespace kda::train
