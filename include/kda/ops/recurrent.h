/// Kimi Delta Attention token by token: generation, and the definition of the operator.
///
/// The recurrence of ops/chunk.h, evaluated serially. With a state pool it is the decode step of a
/// serving engine: states are read from and written to slots of one pool, in place.
#pragma once

#include <cstddef>

#include "kda/backend.h"
#include "kda/ops/chunk.h"
#include "kda/tensor_view.h"

namespace kda {

/// States that live in a pool owned by the caller. Slots that no row names stay bit-identical.
struct StatePool {
  TensorView pool_kv;     ///< [S,HV,K,V] f32 or bf16 (f64 when q is f64), any strides, in place
  ConstTensorView slots;  ///< [N] or [N,Tmax] i32|i64, any strides

  /// Where [N]: row n starts from pool[slots[n]] and leaves its final state there.
  /// Where [N,Tmax]: row n starts from pool[slots[n, num_accepted[n] - 1]] (0 accepted: from zero),
  /// and the state after its token t is written to pool[slots[n,t]]; all start states are read
  /// before any state of that row is written. A negative slot is skipped: nothing is read (the row
  /// starts from zero) and nothing is written. A row without tokens leaves its slot as it is.
  ConstTensorView num_accepted;  ///< [N] i32|i64, with 2-D slots only; absent = 1 for every row
};

/// Gated RMS norm of the output, in one f32 (f64) step before o is rounded; per token and value
/// head
///   o = weight * o / sqrt(mean over V of o^2 + eps) * sigmoid(gate)
/// Source: Kimi Linear report (arXiv 2510.26692) equation 10. The states are not touched by it.
struct OutputNorm {
  ConstTensorView weight;  ///< [V] f32 (f64 when q is f64), contiguous; absent = no norm
  ConstTensorView gate;    ///< [B,T,HV,V] f32 or dtype of q, before the sigmoid; absent = factor 1
  double eps = 1e-5;       ///< >= 0
};

/// One call: some tokens for every sequence, states in and out.
struct RecurrentForwardParams {
  OperatorInputs in;  ///< `in.initial_state_kv` must be absent when a pool is given
  /// [B,T,HV,V] step size per value channel, in place of in.beta and in.beta_logit; absent
  /// otherwise.
  ConstTensorView beta_v;
  StatePool pool;       ///< states kept in slots, in place of initial and final ones
  OutputNorm out_norm;  ///< applied to o last
  TensorView o;         ///< out, [B,T,HV,V], dtype of q; rows of skipped slots are computed too
  TensorView final_state_kv;  ///< out, [N,HV,K,V]; absent = not wanted; not with a pool
};

/// Shape, dtype, value and backend errors throw kda::Error before anything is written.
void recurrent_forward(const RecurrentForwardParams& params, const Context& context = {});

/// Scratch bytes that the call wants from `Context::workspace`.
std::size_t recurrent_forward_workspace_bytes(const RecurrentForwardParams& params,
                                              const Context& context = {});

/// What kAuto would choose and why (backend.h).
BackendChoice explain_recurrent_forward(const RecurrentForwardParams& params);

}  // namespace kda
