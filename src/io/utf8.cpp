#include "io/utf8.h"

namespace kda::io {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

constexpr std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  using Kind = Utf8Step::Kind;
  const std::uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  // Length, and the range of the second byte that excludes overlong forms, surrogates and values
  // over U+10FFFF (RFC 3629, section 4).
  std::size_t length = 0;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1, kReplacement};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i, kReplacement};
    const std::uint8_t b = byte_at(text, i);
    if (b < low || b > high) return {Kind::kInvalid, 1, kReplacement};
    code_point = (code_point << 6) | (b & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kCharacter, length, code_point};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (byte_at(text, at) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.length;
  }
  return at;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = find_invalid_utf8(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append(kReplacementCharacter);
    text.remove_prefix(1);
  }
  return out;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace kda::io
