/// Options that take one number.
///
/// CLI11's own reading of numbers is too kind for a program that names its errors: "010" is 8, what
/// does not fit becomes the largest value, "-1" becomes 2^64 - 1 where the field is unsigned, and a
/// refusal does not say what was expected.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

#include "kda/error.h"
#include "train/options.h"

namespace kda::cli {

/// Both ends belong to the range.
struct WholeRange {
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

constexpr WholeRange kThreadRange{0, 4096};

/// Throws Error(kInvalidArgument) `flag: expected a whole number from 0 to 4096, got ...`.
inline std::int64_t parse_whole(const std::string& text, const std::string& flag,
                                WholeRange range) {
  std::int64_t value = 0;
  train::parse_text(text, flag, value);
  if (value < range.low || value > range.high) {
    const std::string bounds =
        range.high == WholeRange{}.high
            ? "of at least " + std::to_string(range.low)
            : "from " + std::to_string(range.low) + " to " + std::to_string(range.high);
    throw Error(ErrorCode::kInvalidArgument,
                flag + ": expected a whole number " + bounds + ", got " + text);
  }
  return value;
}

/// `names` as for CLI::App::add_option; errors name the first of them.
template <class Integer>
CLI::Option* add_whole(CLI::App* verb, const std::string& names, Integer& value, WholeRange range,
                       const std::string& help) {
  const std::string flag = names.substr(0, names.find(','));
  return verb
      ->add_option_function<std::string>(
          names,
          [flag, range, &value](const std::string& text) {
            value = static_cast<Integer>(parse_whole(text, flag, range));
          },
          help)
      ->type_name("N")
      ->default_str(std::to_string(value));
}

/// A finite number; its range is for the one who uses it to check.
inline CLI::Option* add_real(CLI::App* verb, const std::string& names, double& value,
                             const std::string& help) {
  const std::string flag = names.substr(0, names.find(','));
  return verb
      ->add_option_function<std::string>(
          names, [flag, &value](const std::string& text) { train::parse_text(text, flag, value); },
          help)
      ->type_name("X")
      ->default_str(train::to_text(value));
}

}  // namespace kda::cli
