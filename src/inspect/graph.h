/// A recorded pass: which operations ran, on what, and what came out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/observe.h"

namespace kda::inspect {

enum class NodeKind : std::uint8_t { kInput, kConstant, kOperation, kStage, kGradient };
const char* name_of(NodeKind kind);  ///< "input", "constant", "operation", "stage", "gradient"

/// What is known of a tensor without its values.
struct TensorForm {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  at::ScalarType dtype = at::kFloat;

  static TensorForm of(const at::Tensor& tensor);
};

/// A tensor argument and where it came from: a parameter, or an output of an earlier node.
struct NodeInput {
  std::string argument;               ///< name in the function's signature
  std::int64_t node = -1;             ///< index of the producer; -1: a parameter
  std::int64_t output = 0;            ///< which of its outputs
  std::string parameter;              ///< name in the weight file, or ""
  std::vector<std::int64_t> writers;  ///< nodes that have written to its memory since
  TensorForm form;
  at::Tensor value;    ///< as the function got it, also when its memory was written to later
  at::Tensor written;  ///< as the function left it, where it changes it
};

struct NodeOutput {
  TensorForm form;
  std::int64_t view_of = -1;  ///< index of the input whose memory it shares, or -1
  at::Tensor value;           ///< as the function left it, also when it was written to later
  std::string name;           ///< of a stage's result ("a_qk"); else ""
};

/// min, max, mean and root mean square of the finite values, and how many are not finite.
struct Statistics {
  double min = 0, max = 0, mean = 0, rms = 0;
  std::int64_t nonfinite = 0;
};
Statistics statistics_of(const at::Tensor& tensor);

/// Runs the operation again on other tensors in the places of the inputs.
using Replay = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

struct Node {
  std::string function;
  std::int64_t nth = 0;      ///< how many-th place of that function, from 1
  std::int64_t ordinal = 0;  ///< how many-th place of all, from 1; 0: an input or constant
  std::int64_t pass = 1;     ///< how often the place has run
  NodeKind kind = NodeKind::kOperation;
  std::int64_t phase = 0;
  std::string module;
  std::vector<NodeInput> inputs;
  std::vector<NodeOutput> outputs;
  std::vector<model::Attribute> attributes;
  std::vector<std::int64_t> changed;  ///< indices of the inputs that it writes
  std::vector<std::string> calls;     ///< torch operators that it calls itself
  bool random = false;
  std::int64_t duration_ns = 0;
  std::optional<std::int64_t> flops;
  std::int64_t stage_of = -1;
  std::vector<std::int64_t> stages;
  std::int64_t gradient_of = -1;
  std::vector<Statistics> statistics;  ///< one an output, or empty
  Replay replay;                       ///< empty: cannot run again
  at::Tensor random_state;             ///< of the generator before a random operation

  /// "linear_2_5:1"; a stage: "chunk_kda_1_9:1/gate".
  std::string label;

  /// The tensor argument of that name, or an undefined one.
  at::Tensor argument(const std::string& name) const;
  /// The attribute of that name; the fallback where it is absent or of another type.
  double number(const std::string& name, double fallback) const;
  std::int64_t whole(const std::string& name, std::int64_t fallback) const;
  bool flag(const std::string& name) const;
};

struct OutputRef {
  std::int64_t node = 0;
  std::int64_t output = 0;
};

/// One call of the model.
struct Phase {
  std::string kind;  ///< "forward", "prefill", "decode", "backward"
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::int64_t first_node = 0;
  std::int64_t last_node = 0;  ///< one behind
};

struct Module {
  std::string path;
  std::string parent;
  std::int64_t calls = 0;
  std::vector<OutputRef> outputs;  ///< of the last call
};

struct Result {
  std::string name;
  OutputRef from;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Phase> phases;
  std::vector<Module> modules;  ///< parents before children
  std::vector<Result> results;

  /// Children of each node, by index, each once.
  std::vector<std::vector<std::int64_t>> children() const;
  /// Parents of one node: producers and later writers of its inputs, each once.
  std::vector<std::int64_t> parents(const Node& node) const;
  const Module* find_module(const std::string& path) const;
};

}  // namespace kda::inspect
