#include "text/tokenizer.h"

#include <sentencepiece/sentencepiece_model.pb.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "text/model_check.h"
#include "text/tokenizer_impl.h"

namespace kda::text {
namespace {

namespace sp = sentencepiece;

constexpr std::uint64_t kMaxModelBytes = 64u << 20;
constexpr std::size_t kLongText = 1u << 20;

[[noreturn]] void refuse_model(std::string_view what, const std::string& reason) {
  throw Error(ErrorCode::kIo, std::string(what) + ": not a sound SentencePiece model: " + reason);
}

std::string model_type_name(const sp::TrainerSpec& spec) {
  switch (spec.model_type()) {
    case sp::TrainerSpec::UNIGRAM:
      return "unigram";
    case sp::TrainerSpec::BPE:
      return "bpe";
    case sp::TrainerSpec::WORD:
      return "word";
    case sp::TrainerSpec::CHAR:
      return "char";
  }
  return "unknown";
}

PieceType type_of(sp::ModelProto::SentencePiece::Type type) {
  switch (type) {
    case sp::ModelProto::SentencePiece::NORMAL:
      return PieceType::kNormal;
    case sp::ModelProto::SentencePiece::UNKNOWN:
      return PieceType::kUnknown;
    case sp::ModelProto::SentencePiece::CONTROL:
      return PieceType::kControl;
    case sp::ModelProto::SentencePiece::USER_DEFINED:
      return PieceType::kUserDefined;
    case sp::ModelProto::SentencePiece::UNUSED:
      return PieceType::kUnused;
    case sp::ModelProto::SentencePiece::BYTE:
      return PieceType::kByte;
  }
  return PieceType::kUnused;
}

/// Value of "<0x0A>"; the library has checked the form of byte pieces.
std::uint8_t byte_of(const std::string& piece) {
  return static_cast<std::uint8_t>(std::stoi(piece.substr(3, 2), nullptr, 16));
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (auto at = piece.find(kSpaceMark); at != std::string_view::npos;
       at = piece.find(kSpaceMark)) {
    text += piece.substr(0, at);
    text += ' ';
    piece.remove_prefix(at + kSpaceMark.size());
  }
  text += piece;
  return text;
}

void describe_losses(const sp::ModelProto& model, TokenizerInfo& info) {
  const auto& spec = model.normalizer_spec();
  auto& warnings = info.warnings;
  if (!spec.precompiled_charsmap().empty()) {
    warnings.push_back("text is normalised with " + io::escaped(spec.name()) +
                       " before it is encoded: full-width forms and other characters may be lost");
  }
  if (!model.denormalizer_spec().precompiled_charsmap().empty()) {
    warnings.emplace_back(
        "decoded text would be rewritten by a denormaliser, which is not applied");
  }
  if (info.add_dummy_prefix) {
    warnings.emplace_back("a space is put before the text and taken away again after decoding");
  }
  if (info.remove_extra_whitespaces) {
    warnings.emplace_back("leading, trailing and repeated spaces are lost");
  }
  if (!info.byte_fallback) {
    warnings.emplace_back("characters outside the vocabulary become the unknown token");
  }
  if (!spec.escape_whitespaces()) warnings.emplace_back("spaces are not escaped in pieces");
  if (info.eos_id < 0) warnings.emplace_back("the model has no end-of-sequence piece");
  info.lossless = info.byte_fallback && !info.add_dummy_prefix && !info.remove_extra_whitespaces &&
                  spec.escape_whitespaces() && spec.precompiled_charsmap().empty() &&
                  model.denormalizer_spec().precompiled_charsmap().empty();
}

}  // namespace

void silence_sentencepiece() {
  static std::once_flag once;
  std::call_once(once, [] { sp::SetMinLogLevel(4); });  // over FATAL: only aborts would speak
}

std::string_view name_of(PieceType type) {
  switch (type) {
    case PieceType::kNormal:
      return "normal";
    case PieceType::kUnknown:
      return "unknown";
    case PieceType::kControl:
      return "control";
    case PieceType::kUserDefined:
      return "user-defined";
    case PieceType::kUnused:
      return "unused";
    case PieceType::kByte:
      return "byte";
  }
  return "?";
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return from_bytes(io::read_file(path, kMaxModelBytes), io::escaped(path.string()));
}

Tokenizer Tokenizer::from_bytes(std::string_view model_bytes, std::string_view what) {
  silence_sentencepiece();
  if (model_bytes.size() > kMaxModelBytes) refuse_model(what, "it is over 64 MiB");
  sp::ModelProto model;
  if (!model.ParseFromArray(model_bytes.data(), static_cast<int>(model_bytes.size()))) {
    refuse_model(what, "it is not a protocol buffer of that type");
  }
  if (const auto fault = model_fault(model); !fault.empty()) refuse_model(what, fault);
  auto impl = std::make_shared<Impl>();
  try {
    const auto status = impl->processor.Load(model);
    if (!status.ok()) refuse_model(what, io::escaped(status.error_message()));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    refuse_model(what, e.what());  // the trie builder throws
  }

  const auto& trainer = model.trainer_spec();
  TokenizerInfo& info = impl->info;
  impl->model_bytes = model_bytes;
  info.model_type = model_type_name(trainer);
  info.vocab_size = model.pieces_size();
  info.unk_id = impl->processor.unk_id();
  info.bos_id = impl->processor.bos_id();
  info.eos_id = impl->processor.eos_id();
  info.pad_id = impl->processor.pad_id();
  info.normalizer = model.normalizer_spec().name();
  info.byte_fallback = trainer.byte_fallback();
  info.add_dummy_prefix = model.normalizer_spec().add_dummy_prefix();
  info.remove_extra_whitespaces = model.normalizer_spec().remove_extra_whitespaces();
  info.sha256 = io::sha256(model_bytes);
  describe_losses(model, info);

  impl->strips_all_spaces = info.remove_extra_whitespaces;
  impl->strips_first_space = info.add_dummy_prefix || info.remove_extra_whitespaces;
  impl->newline_is_alone = true;
  impl->byte_ids.fill(-1);
  for (std::int32_t id = 0; id < info.vocab_size; ++id) {
    const auto& piece = model.pieces(id);
    const PieceType type = type_of(piece.type());
    std::string surface;
    if (type == PieceType::kByte) {
      const std::uint8_t byte = byte_of(piece.piece());
      impl->byte_ids[byte] = id;
      surface.assign(1, static_cast<char>(byte));
    } else if (type == PieceType::kUnknown) {
      surface = trainer.unk_surface();
    } else if (type != PieceType::kControl) {
      surface = with_spaces(piece.piece());
    }
    if (type != PieceType::kByte && surface.find('\n') != std::string::npos) {
      impl->newline_is_alone = false;
    }
    impl->token_bytes.push_back(static_cast<std::int32_t>(surface.size()));
    impl->pieces.push_back(piece.piece());
    impl->types.push_back(type);
    impl->surfaces.push_back(std::move(surface));
  }
  return Tokenizer(std::move(impl));
}

const TokenizerInfo& Tokenizer::info() const { return impl_->info; }
const std::vector<std::int32_t>& Tokenizer::token_bytes() const { return impl_->token_bytes; }
const std::string& Tokenizer::model_bytes() const { return impl_->model_bytes; }

void Tokenizer::Impl::check_id(std::int32_t id) const {
  if (id < 0 || id >= info.vocab_size) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "id: expected 0 to " + std::to_string(info.vocab_size - 1) + ", got " + std::to_string(id));
  }
}

const std::string& Tokenizer::piece(std::int32_t id) const {
  impl_->check_id(id);
  return impl_->pieces[static_cast<std::size_t>(id)];
}

PieceType Tokenizer::piece_type(std::int32_t id) const {
  impl_->check_id(id);
  return impl_->types[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view piece) const {
  // The library answers with the unknown id for pieces that do not exist.
  const std::int32_t id = impl_->processor.PieceToId(piece);
  if (id < 0 || impl_->pieces[static_cast<std::size_t>(id)] != piece) return std::nullopt;
  return id;
}

void Tokenizer::Impl::encode_part(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::vector<int> part;
  const auto status = processor.Encode(text, &part);
  if (!status.ok()) {
    throw Error(ErrorCode::kInvalidArgument,
                "text: the tokenizer cannot encode it: " + io::escaped(status.error_message()));
  }
  ids.insert(ids.end(), part.begin(), part.end());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  if (const auto bad = io::find_invalid_utf8(text); bad != text.size()) {
    throw Error(ErrorCode::kInvalidArgument, "text: expected UTF-8, byte " +
                                                 std::to_string(bad + 1) + " of " +
                                                 std::to_string(text.size()) + " is not");
  }
  std::vector<std::int32_t> ids;
  if (!impl_->info.lossless) {
    impl_->encode_part(text, ids);
    return ids;
  }
  // The library takes "▁" in text for a space; its bytes keep it apart.
  while (!text.empty()) {
    const auto mark = text.find(kSpaceMark);
    std::string_view part = text.substr(0, mark);
    text.remove_prefix(part.size());
    // Long texts in pieces: the library needs some 100 bytes per byte of text.
    while (impl_->newline_is_alone && part.size() > kLongText) {
      const auto newline = part.find('\n', kLongText / 16);
      if (newline == std::string_view::npos) break;
      impl_->encode_part(part.substr(0, newline + 1), ids);
      part.remove_prefix(newline + 1);
    }
    impl_->encode_part(part, ids);
    if (mark == std::string_view::npos) break;
    for (const char c : kSpaceMark)
      ids.push_back(impl_->byte_ids[static_cast<std::uint8_t>(c)]);
    text.remove_prefix(kSpaceMark.size());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const std::int32_t id : ids)
    text += decoder.add(id);
  text += decoder.finish();
  return text;
}

}  // namespace kda::text
