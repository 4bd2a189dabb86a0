/// The two languages and their directions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kda::text {

enum class Language : std::uint8_t { kEnglish, kChinese };

/// "en", "zh".
std::string_view name_of(Language language);
/// Of "en", "zh" and their usual variants (eng, zh-cn, zho_Hans, ...), whatever the case; nothing
/// for others.
std::optional<Language> language_from(std::string_view name);

enum class Direction : std::uint8_t { kEnToZh, kZhToEn };

/// "en2zh", "zh2en".
std::string_view name_of(Direction direction);
std::optional<Direction> direction_from(std::string_view name);
Direction direction_to(Language target);
Language source_of(Direction direction);
Language target_of(Direction direction);

}  // namespace kda::text
