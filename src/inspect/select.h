/// Names of what a trace holds, and how a user calls them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/graph.h"
#include "inspect/quantities.h"

namespace kda::inspect {

/// Something that can be extracted.
struct Selection {
  enum class Kind : std::uint8_t { kNode, kModule, kQuantity };
  Kind kind = Kind::kNode;
  std::string name;          ///< label, module path or name of the quantity
  std::int64_t node = -1;    ///< of a node
  std::int64_t output = -1;  ///< of a node: one of its outputs; -1: all
  Quantity quantity;         ///< of a quantity
};

/// All that a graph has: labels in the order of the pass, module paths, quantities.
std::vector<Selection> all_selections(const Graph& graph);

/// What a list like "linear_1_1,layers.0.*,-1,decay" means; each once, in the order of the list.
/// An item is, tried in this order:
///   - a whole number: the operation of that ordinal; negative: counted from the last
///   - a label, with pass (linear_1_1:2) or without (every pass), with ".K" behind it the K-th
///   output
///   - a module path, with or without "model." in front
///   - the name of a quantity, or its kind alone (decay: of all layers)
///   - a glob with * ? [ ] over all of these names
/// Throws kInvalidArgument for what is none of them, naming the nearest names.
std::vector<Selection> select(const Graph& graph, std::string_view list);

/// The items of a list with commas. Throws kInvalidArgument when one of them is empty.
std::vector<std::string> words_of(std::string_view list);

/// Throws kInvalidArgument: nothing is called `word`, and which of the names are nearest.
[[noreturn]] void unknown_name(const std::string& word, const std::vector<std::string>& names);

/// A label without its pass: "linear_1_1" of "linear_1_1:2"; a stage keeps what follows.
std::string without_pass(const std::string& label);

/// Up to `count` of the words that need the fewest changes to become `word`, nearest first. Of a
/// path the last part alone may be near, and "model." in front may be missing; of layers that
/// are equally near the one with the nearest number comes first.
std::vector<std::string> nearest_names(const std::string& word,
                                       const std::vector<std::string>& words, std::size_t count);

}  // namespace kda::inspect
