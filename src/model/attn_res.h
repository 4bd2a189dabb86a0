/// Attention residuals: attention over depth instead of the sum of all earlier outputs.
///
/// For sources v_1..v_M [tokens,d], a gain g [d] and a pseudo-query w [1,d]:
///   rstd_i = 1 / sqrt(mean(v_i^2) + eps);   s_i = <v_i rstd_i, g * w>   (no 1/sqrt(d))
///   p = softmax_i(s);   h = sum_i p_i v_i
/// Values are not normalised. Everything in f32 (f64), one rounding at the end. Backward, with
/// a_i = <dh, v_i>: ds = p * (a - sum p a); dv_i = p_i dh + ds_i rstd_i (g w - k_i s_i / d),
/// k_i = v_i rstd_i; dg = w * sum ds_i k_i; dw = g * sum ds_i k_i. Only logits and rstd are kept;
/// the sources are shared with whoever made them, never stacked. Sources: Attention Residuals
/// (arXiv 2603.15031) equations 2 to 6 and algorithm 1; Kimi K3 report (arXiv 2607.24653) section
/// 2.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/new_parameter.h"
#include "model/parameter.h"

namespace kda::model {

/// sources: at least one, [tokens,d] each, f32 or bf16 (f64); gain [d] and query [1,d] f32 (f64).
/// Returns h [tokens,d] f32 (f64). Differentiable.
at::Tensor attn_res(at::TensorList sources, const at::Tensor& gain, const at::Tensor& query,
                    double eps);

/// The same from torch's operators on stacked sources: a second opinion in the tests.
at::Tensor attn_res_composed(at::TensorList sources, const at::Tensor& gain,
                             const at::Tensor& query, double eps);

/// What a query has seen of some sources: softmax sums relative to the largest logit.
struct AttnResPartial {
  at::Tensor weighted;  ///< sum_i exp(s_i - largest) v_i  [tokens,d] f32 (f64)
  at::Tensor largest;   ///< [tokens,1]
  at::Tensor total;     ///< sum_i exp(s_i - largest)  [tokens,1]
};

/// The gain and the pseudo-query of one place in the network.
struct AttnResWeights {
  at::Tensor gain;   ///< [d]
  at::Tensor query;  ///< [1,d]

  /// Allocates them, uninitialised.
  static AttnResWeights make(std::int64_t hidden_size, const LayerOptions& layer);
  /// Appends them as `<name>_norm.weight` and `<name>_proj.weight`, e.g. with the name
  /// "model.layers.0.self_attention_res".
  void collect(const std::string& name, std::vector<Parameter>& parameters) const;
};

/// Inference in two phases, without gradients. First: all queries of a block of layers over the
/// finished sources, each source read once for all of them. Second: one more source, the running
/// sum, joins by online softmax. `attn_res_merge(attn_res_partials(R, {a})[0], x, a, eps)` is
/// `attn_res(R + {x}, a.gain, a.query, eps)` up to rounding.
std::vector<AttnResPartial> attn_res_partials(at::TensorList sources,
                                              const std::vector<AttnResWeights>& places,
                                              double eps);
at::Tensor attn_res_merge(const AttnResPartial& partial, const at::Tensor& source,
                          const AttnResWeights& place, double eps);
/// The result when nothing joins.
at::Tensor attn_res_finish(const AttnResPartial& partial);

}  // namespace kda::model
