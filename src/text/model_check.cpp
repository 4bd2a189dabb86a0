#include "text/model_check.h"

#include <sentencepiece/sentencepiece_model.pb.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "io/escape.h"
#include "io/utf8.h"

namespace kda::text {
namespace {

// Sizes of the arrays in which the library collects matches at one position of the text.
constexpr std::size_t kMaxCharsmapMatches = 32;
constexpr std::size_t kMaxUserSymbolMatches = 64;
constexpr int kMaxPieces = 1 << 22;
constexpr std::size_t kMaxPieceBytes = 4096;
constexpr std::size_t kMaxCharsmapBytes = 8u << 20;

/// One 32-bit unit of a darts-clone double array.
class Unit {
 public:
  explicit Unit(std::uint32_t bits) : bits_(bits) {}
  bool has_leaf() const { return ((bits_ >> 8) & 1) != 0; }
  /// Bit 31 marks a leaf, which therefore equals no label of an inner node.
  std::uint32_t label() const { return bits_ & 0x800000FFu; }
  std::uint32_t offset() const { return (bits_ >> 10) << ((bits_ & 0x200u) >> 6); }

 private:
  std::uint32_t bits_;
};

/// Depth-first walk over all states that text can reach. A state is the position from which the
/// children of a node are found: child `c` sits at state ^ c.
class TrieWalk {
 public:
  explicit TrieWalk(std::string_view units)
      : units_(units), size_(units.size() / 4), matches_(size_ / 256 + 1) {}

  std::string fault() {
    const std::uint32_t root = unit(0).offset();
    if (!inside(root)) return "the character map's trie leaves its array";
    // (state, next label to try). States are marked when entered and get their result when left.
    struct Frame {
      std::uint32_t state;
      std::uint32_t label;
      std::size_t matches;
    };
    std::vector<Frame> stack{{root, 1, 0}};
    mark(root) = kOpen;
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.label == 256) {
        const std::size_t matches = frame.matches;
        mark(frame.state) = static_cast<std::uint8_t>(matches + 1);
        stack.pop_back();
        if (!stack.empty()) {
          Frame& parent = stack.back();
          const bool leaf = unit(parent.state ^ (parent.label - 1)).has_leaf();
          parent.matches = std::max(parent.matches, matches + (leaf ? 1 : 0));
          if (parent.matches > kMaxCharsmapMatches) {
            return "the character map nests more than 32 rules";
          }
        }
        continue;
      }
      const std::uint32_t label = frame.label++;
      const std::uint32_t position = frame.state ^ label;
      const Unit child = unit(position);
      if (child.label() != label) continue;
      const std::uint32_t state = position ^ child.offset();
      if (!inside(state)) return "the character map's trie leaves its array";
      const std::uint8_t seen = mark(state);
      if (seen == kOpen) return "the character map's trie has a cycle";
      if (seen == kNew) {
        mark(state) = kOpen;
        stack.push_back({state, 1, 0});
      } else {
        const std::size_t matches = seen - 1u + (child.has_leaf() ? 1 : 0);
        frame.matches = std::max(frame.matches, matches);
        if (matches > kMaxCharsmapMatches) return "the character map nests more than 32 rules";
      }
    }
    return "";
  }

 private:
  static constexpr std::uint8_t kNew = 0;
  static constexpr std::uint8_t kOpen = 255;  // > kMaxCharsmapMatches + 1

  Unit unit(std::uint32_t position) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, units_.data() + std::size_t{position} * 4, 4);
    return Unit(bits);
  }
  /// All 256 children of the state lie in the array.
  bool inside(std::uint32_t state) const { return (state | 0xFFu) < size_; }
  std::uint8_t& mark(std::uint32_t state) {
    auto& block = matches_[state >> 8];
    if (block.empty()) block.resize(256);
    return block[state & 0xFF];
  }

  std::string_view units_;
  std::size_t size_;
  std::vector<std::vector<std::uint8_t>> matches_;
};

std::string pieces_fault(const sentencepiece::ModelProto& model) {
  if (model.pieces_size() == 0) return "it has no pieces";
  if (model.pieces_size() > kMaxPieces) return "it has more than 2^22 pieces";
  std::vector<std::string_view> user_symbols;
  for (int id = 0; id < model.pieces_size(); ++id) {
    const auto& piece = model.pieces(id);
    const std::string& text = piece.piece();
    const auto name = [id, &text] {
      return "piece " + std::to_string(id) + " " + io::escaped(text, 40);
    };
    if (text.empty() || text.size() > kMaxPieceBytes) {
      return name() + " has " + std::to_string(text.size()) + " bytes";
    }
    if (!io::is_utf8(text)) return name() + " is not UTF-8";
    if (text.find('\0') != std::string::npos) return name() + " contains NUL";
    if (!std::isfinite(piece.score())) return name() + " has a score that is not finite";
    if (piece.type() == sentencepiece::ModelProto::SentencePiece::USER_DEFINED) {
      user_symbols.emplace_back(text);
    }
  }
  if (longest_prefix_chain(std::move(user_symbols)) > kMaxUserSymbolMatches) {
    return "more than 64 user-defined symbols are prefixes of each other";
  }
  return "";
}

}  // namespace

std::string charsmap_fault(std::string_view blob) {
  if (blob.size() > kMaxCharsmapBytes) return "its character map is over 8 MiB";
  std::uint32_t trie_bytes = 0;
  if (blob.size() <= sizeof(trie_bytes)) return "its character map is cut short";
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes < 1024 || trie_bytes % 1024 != 0 || trie_bytes >= blob.size()) {
    return "its character map has a trie of " + std::to_string(trie_bytes) + " bytes";
  }
  const auto strings = blob.substr(trie_bytes);
  if (strings.back() != '\0') return "its character map does not end in NUL";
  // Replacements are C strings that begin anywhere in the pool, so the pool as a whole must be
  // text.
  if (!io::is_utf8(strings)) return "its character map holds bytes that are not UTF-8";
  return TrieWalk(blob.substr(0, trie_bytes)).fault();
}

std::size_t longest_prefix_chain(std::vector<std::string_view> strings) {
  std::sort(strings.begin(), strings.end());
  std::vector<std::string_view> chain;
  std::size_t longest = 0;
  for (const auto s : strings) {
    while (!chain.empty() && !s.starts_with(chain.back()))
      chain.pop_back();
    chain.push_back(s);
    longest = std::max(longest, chain.size());
  }
  return longest;
}

std::string model_fault(const sentencepiece::ModelProto& model) {
  if (auto fault = pieces_fault(model); !fault.empty()) return fault;
  for (const auto* spec : {&model.normalizer_spec(), &model.denormalizer_spec()}) {
    if (spec->precompiled_charsmap().empty()) continue;
    if (auto fault = charsmap_fault(spec->precompiled_charsmap()); !fault.empty()) return fault;
  }
  if (!io::is_utf8(model.trainer_spec().unk_surface())) return "its unk_surface is not UTF-8";
  return "";
}

}  // namespace kda::text
