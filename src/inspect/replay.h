/// Proof of a recorded graph: every node, run again alone, gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/graph.h"

namespace kda::inspect {

struct Difference {
  std::int64_t node = 0;
  std::int64_t output = 0;
  double max_abs_diff = 0;
  /// `output` is an input: it is not what its producer made (an edge of the graph is wrong), or a
  /// changed one became something else.
  bool is_input = false;
};

struct Skipped {
  std::int64_t node = 0;
  std::string reason;
};

struct Validation {
  std::int64_t equal = 0;
  std::int64_t different = 0;  ///< nodes with at least one difference
  std::vector<Difference> differences;
  std::vector<Skipped> skipped;
};

/// Node by node: the recorded inputs must be bit for bit what their producers made, and the
/// operation on copies of them must give, bit for bit, the recorded outputs and the recorded new
/// values of the inputs that it changes. Random operations draw from the generator state of then.
/// Inputs, constants and stages are not operations of the pass and are not counted.
Validation validate(const Graph& graph);

/// Same shape, type and bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace kda::inspect
