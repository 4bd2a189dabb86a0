#include "text/language.h"

#include <string>

namespace kda::text {

std::string_view name_of(Language language) { return language == Language::kEnglish ? "en" : "zh"; }

std::optional<Language> language_from(std::string_view name) {
  std::string lower;
  for (const char c : name)
    lower += c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::string_view tag = std::string_view(lower).substr(0, lower.find('-'));
  if (tag == "en" || tag == "eng" || tag == "english") return Language::kEnglish;
  if (tag == "zh" || tag == "zho" || tag == "cmn" || tag == "chinese") return Language::kChinese;
  return std::nullopt;
}

std::string_view name_of(Direction direction) {
  return direction == Direction::kEnToZh ? "en2zh" : "zh2en";
}

std::optional<Direction> direction_from(std::string_view name) {
  for (const Direction direction : {Direction::kEnToZh, Direction::kZhToEn}) {
    if (name == name_of(direction)) return direction;
  }
  return std::nullopt;
}

Direction direction_to(Language target) {
  return target == Language::kChinese ? Direction::kEnToZh : Direction::kZhToEn;
}

Language source_of(Direction direction) {
  return direction == Direction::kEnToZh ? Language::kEnglish : Language::kChinese;
}

Language target_of(Direction direction) {
  return direction == Direction::kEnToZh ? Language::kChinese : Language::kEnglish;
}

}  // namespace kda::text
