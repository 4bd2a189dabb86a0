/// A model's pass, recorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "inspect/graph.h"
#include "model/causal_lm.h"

namespace kda::inspect {

struct TraceOptions {
  /// 0: all tokens at once. N: the tokens as a prompt, then N greedy tokens one by one from the
  /// decode state: N passes through the places of the first.
  std::int64_t decode = 0;
  /// Record the loss of predicting each next token, and its gradients. Needs two tokens; excludes
  /// `decode`.
  bool backward = false;
  bool statistics = false;  ///< of every output
};

struct Trace {
  Graph graph;
  std::vector<std::int64_t> ids;  ///< with the decoded ones
  at::Tensor logits;              ///< [tokens,vocab] f32 of a forward pass; [1,vocab], the last, of
                                  ///< decoding; undefined with `backward`
  at::Tensor loss;                ///< sum of the cross entropies, with `backward`
  std::vector<at::Tensor> gradients;  ///< of the model's parameters in their order, or undefined
};

/// `ids`: the tokens of one sequence. The model is as before afterwards, its gradients too: they
/// must be undefined. Throws kInvalidArgument for options that exclude each other and what the
/// model refuses.
Trace trace_model(const model::CausalLM& model, const std::vector<std::int64_t>& ids,
                  const TraceOptions& options = {});

/// What a module is, from its path and the config: "kda", "mla", "moe", ... (docs/inspection.md).
std::string module_kind(const std::string& path, const model::KDAConfig& config);

}  // namespace kda::inspect
