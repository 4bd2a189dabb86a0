/// Checks that a SentencePiece model can be used without the library reading outside its memory or
/// aborting. Private to the tokenizer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class ModelProto;
}

namespace kda::text {

/// First reason to refuse the model, or "". The library itself trusts what it loads: it walks the
/// character map's double array without bounds, keeps matches in arrays of fixed size, and throws
/// from its trie builder for pieces with NUL.
std::string model_fault(const sentencepiece::ModelProto& model);

/// Reason to refuse a character map (`precompiled_charsmap`), or "". Layout: u32 size of the trie
/// in bytes, the double array of that size (darts-clone units), then strings that end in NUL.
std::string charsmap_fault(std::string_view blob);

/// Length of the longest chain of strings that are each a prefix of the next.
std::size_t longest_prefix_chain(std::vector<std::string_view> strings);

}  // namespace kda::text
