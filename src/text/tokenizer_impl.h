/// What a Tokenizer holds. Private to the tokenizer's source files.
#pragma once

#include <sentencepiece/sentencepiece_processor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace kda::text {

/// "▁", which stands for a space in pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Keeps SentencePiece from writing to stderr: a library never prints.
void silence_sentencepiece();

struct Tokenizer::Impl {
  sentencepiece::SentencePieceProcessor processor;
  std::string model_bytes;
  TokenizerInfo info;
  std::vector<std::string> pieces;
  std::vector<PieceType> types;
  std::vector<std::string> surfaces;  ///< what an id adds to decoded text; one byte for byte pieces
  std::vector<std::int32_t> token_bytes;
  std::array<std::int32_t, 256> byte_ids{};  ///< -1 without byte fallback
  bool strips_first_space = false;           ///< decoding drops one leading space
  bool strips_all_spaces = false;            ///< decoding drops all leading spaces
  bool newline_is_alone = false;  ///< no piece contains a newline: text may be cut after one

  void check_id(std::int32_t id) const;
  /// Appends the ids of text that SentencePiece handles as a whole.
  void encode_part(std::string_view text, std::vector<std::int32_t>& ids) const;
};

}  // namespace kda::text
