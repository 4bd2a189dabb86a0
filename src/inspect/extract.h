/// Chosen tensors of a pass, and the file they are written to (docs/inspection.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "inspect/graph.h"
#include "inspect/select.h"
#include "io/json.h"

namespace kda::inspect {

struct Extracted {
  std::string name;               ///< in the file
  std::string kind;               ///< "activation", or the kind of the quantity
  std::vector<std::string> axes;  ///< a name for each dimension
  std::string source;             ///< label of the node, or path of the module
  at::Tensor value;               ///< on the host, contiguous
  std::int64_t first_token = 0;   ///< of the phase that it comes from
  std::int64_t num_tokens = 0;    ///< of that phase; 0 of a backward pass
};

/// The values, each name once. A layer's is the residual stream behind it; a module's is what it
/// returned. Quantities come as f32, `load` as i64.
std::vector<Extracted> extract(const Graph& graph, const std::vector<Selection>& chosen);

/// Writes them as safetensors, whole or not at all. `tokens` and `run` go into the metadata as they
/// are. Throws kIo.
void write_extracted(const std::filesystem::path& path, const std::vector<Extracted>& tensors,
                     const io::Json& tokens, const io::Json& run);

}  // namespace kda::inspect
