#include "train/units.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kda/error.h"

namespace kda::train {
namespace {

[[noreturn]] void refuse(const std::string& name, std::string_view text, const char* expected) {
  throw Error(ErrorCode::kInvalidArgument,
              name + ": expected " + expected + ", got '" + std::string(text) + "'");
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

constexpr const char* kCountForm = "a count such as 800, 64k, 8.2M or 1G";
constexpr const char* kPeriodForm =
    "a period such as 200u (updates), 1Mt (tokens), 2e (epochs) or off";

std::string format(const char* pattern, double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

}  // namespace

std::int64_t parse_count(std::string_view text, const std::string& name) {
  const std::string_view given = text;
  text = trim(text);
  double number = 0;
  const auto [end, status] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::general);
  if (status != std::errc{} || !std::isfinite(number) || number < 0)
    refuse(name, given, kCountForm);
  const std::string_view suffix = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  double factor = 1;
  if (suffix.size() == 1) {
    switch (std::tolower(static_cast<unsigned char>(suffix.front()))) {
      case 'k':
        factor = 1e3;
        break;
      case 'm':
        factor = 1e6;
        break;
      case 'g':
      case 'b':
        factor = 1e9;
        break;
      default:
        refuse(name, given, kCountForm);
    }
  } else if (!suffix.empty()) {
    refuse(name, given, kCountForm);
  }
  const double value = number * factor;
  // 8.2 is not a binary fraction: round, then insist that rounding moved next to nothing.
  const double whole = std::round(value);
  if (whole > 9.0e15 || std::abs(value - whole) > 1e-6 * std::max(1.0, whole)) {
    refuse(name, given, kCountForm);
  }
  return static_cast<std::int64_t>(whole);
}

std::int64_t parse_budget(std::string_view text, char unit, const std::string& name) {
  const std::string_view given = text;
  text = trim(text);
  constexpr std::string_view kUnits = "ute";
  if (unit != 0 && !text.empty() && kUnits.find(text.back()) != std::string_view::npos) {
    if (text.back() != unit) {
      const char* what = unit == 'u'   ? "a count of optimizer steps such as 500, 2k or 500u"
                         : unit == 't' ? "a count of tokens such as 64k, 8.2M or 2Mt"
                                       : "a number of passes over the data such as 3 or 3e";
      refuse(name, given, what);
    }
    text.remove_suffix(1);
    text = trim(text);
  }
  try {
    return parse_count(text, name);
  } catch (const Error&) {
    refuse(name, given, kCountForm);
  }
}

Period parse_period(std::string_view text, const std::string& name) {
  const std::string_view given = text;
  text = trim(text);
  if (text == "off" || text == "never") return {};
  if (text.empty()) refuse(name, given, kPeriodForm);
  Period period;
  bool has_unit = true;
  switch (text.back()) {
    case 'u':
      period.unit = PeriodUnit::kUpdates;
      break;
    case 't':
      period.unit = PeriodUnit::kTokens;
      break;
    case 'e':
      period.unit = PeriodUnit::kEpochs;
      break;
    default:
      has_unit = false;
  }
  if (has_unit) text.remove_suffix(1);
  try {
    period.every = parse_count(text, name);
  } catch (const Error&) {
    refuse(name, given, kPeriodForm);
  }
  if (period.every == 0) period.unit = PeriodUnit::kUpdates;
  return period;
}

std::string to_string(const Period& period) {
  if (period.every == 0) return "off";
  const char unit = period.unit == PeriodUnit::kUpdates  ? 'u'
                    : period.unit == PeriodUnit::kTokens ? 't'
                                                         : 'e';
  return std::to_string(period.every) + unit;
}

bool is_due(const Period& period, const Position& before, const Position& now) {
  if (period.every <= 0) return false;
  switch (period.unit) {
    case PeriodUnit::kUpdates:
      return now.updates / period.every > before.updates / period.every;
    case PeriodUnit::kTokens:
      return now.tokens / period.every > before.tokens / period.every;
    case PeriodUnit::kEpochs: {
      if (now.tokens_per_epoch <= 0) return false;
      if (period.every > std::numeric_limits<std::int64_t>::max() / now.tokens_per_epoch) {
        return false;  // longer than any run
      }
      const std::int64_t tokens = period.every * now.tokens_per_epoch;
      return now.tokens / tokens > before.tokens / tokens;
    }
  }
  return false;
}

std::string short_count(double value) {
  const double magnitude = std::abs(value);
  const auto scaled = [](double v, const char* suffix) {
    const double size = std::abs(v);
    return format(size >= 99.95 ? "%.0f" : size >= 9.995 ? "%.1f" : "%.2f", v) + suffix;
  };
  if (magnitude >= 999.5e6) return scaled(value / 1e9, "G");
  if (magnitude >= 999.5e3) return scaled(value / 1e6, "M");
  if (magnitude >= 999.5) return scaled(value / 1e3, "k");
  return value == std::floor(value) ? format("%.0f", value) : scaled(value, "");
}

std::string short_bytes(double bytes) {
  constexpr double kKiB = 1024.0;
  if (bytes >= kKiB * kKiB * kKiB) return format("%.1fG", bytes / (kKiB * kKiB * kKiB));
  if (bytes >= kKiB * kKiB) return format("%.0fM", bytes / (kKiB * kKiB));
  if (bytes >= kKiB) return format("%.0fk", bytes / kKiB);
  return format("%.0fB", bytes);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto total = static_cast<long long>(std::min(seconds + 0.5, 3.0e9));
  char buffer[48];
  if (total >= 86400) {
    std::snprintf(buffer, sizeof buffer, "%lldd%02lldh", total / 86400, total % 86400 / 3600);
  } else if (total >= 3600) {
    std::snprintf(buffer, sizeof buffer, "%lldh%02lldm", total / 3600, total % 3600 / 60);
  } else if (total >= 60) {
    std::snprintf(buffer, sizeof buffer, "%lldm%02llds", total / 60, total % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%llds", total);
  }
  return buffer;
}

}  // namespace kda::train
