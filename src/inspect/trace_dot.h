/// A graph as Graphviz draws it.
#pragma once

#include <filesystem>
#include <string>

#include "inspect/graph.h"

namespace kda::inspect {

struct DotOptions {
  /// Only nodes whose label or module matches one of these names or globs, with commas; "": all.
  std::string only;
};

/// A digraph: a cluster for each module, a box for each operation with its shapes, an ellipse for
/// each input, the stages of an opened operator in a cluster of their own. Edges carry
/// arguments. Throws kInvalidArgument for an item of `only` that matches nothing, naming the
/// nearest.
std::string to_dot(const Graph& graph, const DotOptions& options = {});

/// Draws DOT text as SVG with Graphviz' `dot` from $PATH, whole or not at all. Throws kUnsupported
/// naming the package when the program is not there, kIo when it fails.
void draw_svg(const std::string& dot, const std::filesystem::path& path);

}  // namespace kda::inspect
