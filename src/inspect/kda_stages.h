/// What happens inside the KDA operator, in double, from the recorded arguments of a call.
///
/// The formulas are those of docs/ops/chunk.md: for each chunk of C tokens, with Gc the inclusive
/// sum of log2(e) g from the chunk's start,
///   a_kk_ij = b_i sum_d k_id k_jd 2^(Gc_id - Gc_jd)  (i > j)     a_qk_ij likewise of q  (i >= j)
///   t_inv = (I + a_kk)^-1    w = t_inv diag(b) (k 2^Gc)    u = t_inv diag(b) v
///   v_new = u - w h          o = s (q 2^Gc h + a_qk v_new)
///   h' = diag(2^Gc_last) h + (k 2^(Gc_last - Gc))^T v_new
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "inspect/graph.h"

namespace kda::inspect {

/// The values as f64 on the host, without gradient.
at::Tensor host_double(const at::Tensor& tensor);

/// The operator's inputs after normalisation, gate and sigmoid, all f64 on the host, value heads
/// side by side: q and k of a group are repeated.
struct KdaInputs {
  at::Tensor q, k;               ///< [T,HV,K]
  at::Tensor v;                  ///< [T,HV,V]
  at::Tensor g_ln;               ///< [T,HV,K]
  at::Tensor beta;               ///< [T,HV]
  at::Tensor state0;             ///< [N,HV,K,V]
  std::vector<std::int64_t> cu;  ///< [N+1]
  double scale = 1;
  std::int64_t chunk = 64;
};

/// `node`: a call of chunk_kda. Throws kInvalidArgument for others.
KdaInputs kda_inputs(const Node& node);

struct KdaStages {
  at::Tensor gcum_log2;       ///< [T,HV,K]
  at::Tensor a_qk, a_kk;      ///< [NC,HV,C,C], zeros behind the last row of a short chunk
  at::Tensor t_inv;           ///< [NC,HV,C,C]
  at::Tensor w, u, v_new, o;  ///< [T,HV,K|V|V|V]
  at::Tensor h, final_state;  ///< [NC,HV,K,V] at the chunks' starts, [N,HV,K,V]
};
KdaStages kda_stages(const KdaInputs& inputs);

/// The state after each token, one by one: visit(sequence, token, state [HV,K,V] f64). The tensor
/// is overwritten afterwards.
void visit_states(const KdaInputs& inputs,
                  const std::function<void(std::int64_t, std::int64_t, const at::Tensor&)>& visit);

/// M [HV,T,T] with o = M v for a zero initial state: the recurrence with unit vectors as values.
/// Zero between different sequences.
at::Tensor attention_map(const KdaInputs& inputs);

/// Appends the stages of the KDA call `index` as nodes; nothing if they are there.
void open_operator(Graph& graph, std::int64_t index);

}  // namespace kda::inspect
