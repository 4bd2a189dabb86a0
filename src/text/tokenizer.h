/// SentencePiece tokenizers: text to ids and back, whole or streaming.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/sha256.h"

namespace kda::text {

enum class PieceType : std::uint8_t {
  kNormal,
  kUnknown,
  kControl,      ///< never produced from text, decodes to nothing: BOS, EOS, PAD, chat marks
  kUserDefined,  ///< always one token when it stands in text
  kUnused,
  kByte,
};

/// "normal", "unknown", "control", "user-defined", "unused", "byte".
std::string_view name_of(PieceType type);

/// What a model file says about itself.
struct TokenizerInfo {
  std::string model_type;  ///< "bpe", "unigram", "word", "char"
  std::int32_t vocab_size = 0;
  std::int32_t unk_id = -1;
  std::int32_t bos_id = -1;  ///< -1 when the model has none, for all special ids
  std::int32_t eos_id = -1;
  std::int32_t pad_id = -1;
  std::string normalizer;  ///< rule name, e.g. "identity", "nmt_nfkc"
  bool byte_fallback = false;
  bool add_dummy_prefix = false;
  bool remove_extra_whitespaces = false;
  bool lossless = false;              ///< decode(encode(x)) == x for every valid UTF-8 text x
  std::vector<std::string> warnings;  ///< one sentence for each way in which text may change
  io::Sha256Digest sha256{};          ///< of the model file's bytes
};

/// A loaded model. Immutable and safe to share between threads; cheap to copy.
///
/// Errors: Error(kIo) for a file that is missing, over 64 MiB, or not a sound SentencePiece model;
/// Error(kInvalidArgument) for text that is not UTF-8 (with the byte offset) and for ids out of
/// range.
class Tokenizer {
 public:
  static Tokenizer load(const std::filesystem::path& path);
  /// `what` names the bytes in errors.
  static Tokenizer from_bytes(std::string_view model, std::string_view what = "tokenizer model");

  const TokenizerInfo& info() const;
  std::int32_t vocab_size() const { return info().vocab_size; }
  std::int32_t eos_id() const { return info().eos_id; }

  /// Ids of `text`, without BOS or EOS. Control pieces that are spelled out in the text ("</s>")
  /// are encoded as the characters they are. NUL is a character like any other.
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// Text of `ids`. Control pieces decode to nothing; byte pieces that do not form a character
  /// decode to U+FFFD each, so the result is always valid UTF-8.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// The piece as stored, e.g. "▁the", "<0x0A>", "</s>".
  const std::string& piece(std::int32_t id) const;
  PieceType piece_type(std::int32_t id) const;
  /// Id of a piece as stored, or nothing.
  std::optional<std::int32_t> id_of(std::string_view piece) const;
  /// UTF-8 bytes that each id stands for in decoded text: 1 for byte pieces, 0 for control pieces.
  /// Index = id. The denominator of bits per byte.
  const std::vector<std::int32_t>& token_bytes() const;

  /// The model file's bytes, to store beside a checkpoint.
  const std::string& model_bytes() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Decodes ids one by one for streaming. Every returned string is valid UTF-8: bytes of a character
/// that is not complete yet are held back. The concatenation of all results and of `finish()`
/// equals `Tokenizer::decode` of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer);
  /// Text that became complete with this id; may be empty.
  std::string add(std::int32_t id);
  /// What is left, with U+FFFD for the bytes of a cut character. The decoder starts anew.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::string held_;      ///< bytes of an incomplete character, at most 3
  bool at_start_ = true;  ///< a leading space may still have to be dropped
};

}  // namespace kda::text
