#include <utility>

#include "io/utf8.h"
#include "text/tokenizer.h"
#include "text/tokenizer_impl.h"

namespace kda::text {
namespace {

/// Moves all characters that are complete from `held` to `out`; bytes that cannot begin one become
/// U+FFFD. With `flush` the rest goes too.
void release(std::string& held, std::string& out, bool flush) {
  std::string_view bytes = held;
  while (!bytes.empty()) {
    const io::Utf8Step step = io::utf8_step(bytes);
    if (step.kind == io::Utf8Step::Kind::kIncomplete && !flush) break;
    if (step.kind == io::Utf8Step::Kind::kCharacter) {
      out += bytes.substr(0, step.length);
    } else {
      for (std::size_t i = 0; i < step.length; ++i)
        out += io::kReplacementCharacter;
    }
    bytes.remove_prefix(step.length);
  }
  held.erase(0, held.size() - bytes.size());
}

}  // namespace

StreamDecoder::StreamDecoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

std::string StreamDecoder::add(std::int32_t id) {
  const Tokenizer::Impl& impl = *tokenizer_.impl_;
  impl.check_id(id);
  const auto index = static_cast<std::size_t>(id);
  std::string out;
  if (impl.types[index] == PieceType::kByte) {
    held_ += impl.surfaces[index];
    release(held_, out, false);
    if (!out.empty()) at_start_ = false;
    return out;
  }
  // Bytes on both sides of another piece never form one character.
  release(held_, out, true);
  if (!out.empty()) at_start_ = false;
  std::string_view surface = impl.surfaces[index];
  const bool strippable =
      impl.types[index] != PieceType::kUnknown && impl.strips_first_space && at_start_;
  if (strippable && surface.starts_with(' ')) {
    surface.remove_prefix(1);
    at_start_ = impl.strips_all_spaces;
  }
  if (!surface.empty()) at_start_ = false;
  out += surface;
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  release(held_, out, true);
  at_start_ = true;
  return out;
}

}  // namespace kda::text
