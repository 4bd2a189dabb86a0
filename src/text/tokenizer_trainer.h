/// Training of SentencePiece models that lose nothing: identity normalisation, byte fallback.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kda::text {

enum class TokenizerModel : std::uint8_t { kBpe, kUnigram };

struct TokenizerTrainOptions {
  TokenizerModel model = TokenizerModel::kBpe;
  std::int32_t vocab_size = 8192;  ///< including the special, control and 256 byte pieces
  /// Special ids; bos_id may be -1 (none). EOS and PAD are required and must differ.
  std::int32_t unk_id = 0;
  std::int32_t bos_id = 1;
  std::int32_t eos_id = 2;
  std::int32_t pad_id = 3;
  std::vector<std::string> control_symbols;  ///< e.g. chat marks; never produced from text
  std::vector<std::string> user_symbols;     ///< always one token where they stand in text
  /// Share of the text's characters that get their own piece, in (0, 1]; the rest is spelled in
  /// bytes.
  double character_coverage = 0.9995;
  std::int32_t max_piece_chars = 16;
  bool split_digits = true;  ///< every digit is its own token: numbers stay regular
  /// Text over this size is sampled: line i is used when hash(seed, i) falls below the share
  /// wanted.
  std::uint64_t max_bytes = 64u << 20;
  std::uint64_t seed = 0;
};

/// Feeds documents: calls `sink` once per document. Called once or twice (to count, then to read)
/// and must give the same documents each time.
using DocumentFeed = std::function<void(const std::function<void(std::string_view)>& sink)>;

struct TokenizerTrainResult {
  std::string model_bytes;
  std::vector<std::string> warnings;  ///< vocabulary shrunk, text sampled, characters left out
  std::uint64_t corpus_bytes = 0;     ///< bytes offered
  std::uint64_t used_bytes = 0;       ///< bytes trained on
};

/// Trains a model. The same documents in the same order and the same options give the same bytes,
/// on any machine and number of cores: the trainer's work is cut in a fixed number of parts.
/// Another order of documents may give another model, because ties are broken by first occurrence.
///
/// A vocabulary that the text cannot fill is shrunk, with a warning. Error(kInvalidArgument) for
/// text that is empty, only white space or not UTF-8, for ids that collide or lie outside the
/// vocabulary, and for a vocabulary smaller than the byte, special and control pieces.
TokenizerTrainResult train_tokenizer(const DocumentFeed& documents,
                                     const TokenizerTrainOptions& options);

}  // namespace kda::text
