/// The decay gate: from pre-activations to the natural-log decay of every channel.
///
/// Math, per value head h and channel d, with x the pre-activation, b the bias, A = a_log:
///   standard gate (no lower bound):  g_ln = -exp(A_h) * softplus(x + b_hd)
///   safe gate (lower bound L < 0):   g_ln =  L * sigmoid(exp(A_h) * (x + b_hd))
/// Everything is computed in f32 from the first load (f64 when the tensors are f64).
/// Sources: Kimi Linear report (arXiv 2510.26692) section 4; Kimi K3 report (arXiv 2607.24653)
/// equation 5.
#pragma once

#include <cstddef>
#include <optional>

#include "kda/backend.h"
#include "kda/tensor_view.h"

namespace kda {

/// Parameters of the gate. f32, or f64 when g_raw is f64. Contiguous.
struct GateParams {
  ConstTensorView a_log;                 ///< [HV]; may be absent only with a lower bound: exp(A)=1
  ConstTensorView dt_bias;               ///< [HV,K]; absent = 0
  std::optional<double> lower_bound_ln;  ///< < 0; its presence selects the safe gate
};

/// One forward call.
struct GateForwardParams {
  ConstTensorView g_raw;  ///< [B,T,HV,K] f64|f32|bf16|f16, any strides
  GateParams gate;        ///< which gate, and its parameters
  TensorView g_ln;        ///< out, [B,T,HV,K] f32 (f64 when g_raw is f64), written
};

/// One backward call.
struct GateBackwardParams {
  ConstTensorView g_raw;  ///< [B,T,HV,K]
  GateParams gate;        ///< as in the forward call
  ConstTensorView dg_ln;  ///< [B,T,HV,K] f32|f64: gradient of g_ln
  TensorView dg_raw;      ///< out, [B,T,HV,K] in any floating dtype, written; may be absent
  TensorView da_log;      ///< out, [HV] f32|f64, written; absent when a_log is or not wanted
  TensorView d_dt_bias;   ///< out, [HV,K] f32|f64, written; summed before any rounding
};

/// Gate (or ready-made decay) followed by the prefix sum inside each chunk.
struct GateCumsumForwardParams {
  ConstTensorView g_ln;        ///< [B,T,HV,K]: exactly one of g_ln and g_raw
  ConstTensorView g_raw;       ///< [B,T,HV,K], activated by `gate`
  GateParams gate;             ///< for g_raw
  ConstTensorView cu_seqlens;  ///< [N+1] i32|i64, packed (B = 1), absent = dense
  int chunk = 64;              ///< the sum restarts at every chunk of every sequence
  TensorView gcum_log2;        ///< out, [B,T,HV,K] f32 (f64): inclusive sum times log2(e)
};

/// Throws kInvalidArgument or kUnsupported; thread safe; asynchronous on the CUDA backend.
void gate_forward(const GateForwardParams& params, const Context& context = {});
/// Errors, threads and streams as of `gate_forward`.
void gate_backward(const GateBackwardParams& params, const Context& context = {});
/// Errors, threads and streams as of `gate_forward`.
void gate_cumsum_forward(const GateCumsumForwardParams& params, const Context& context = {});

/// Scratch bytes that the call wants from `Context::workspace`.
std::size_t gate_backward_workspace_bytes(const GateBackwardParams& params,
                                          const Context& context = {});

}  // namespace kda
