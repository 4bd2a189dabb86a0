/// Kimi Delta Attention over whole sequences, chunk by chunk: training and prefill.
///
/// Math, per sequence and value head hv (query/key head hv / G), t = 1..T, S in R^{K x V}:
///   S_t = diag(exp(g_t)) S_{t-1} + beta_t k_t (v_t - (diag(exp(g_t)) S_{t-1})^T k_t)^T
///   o_t = scale * S_t^T q_t            (the state *after* the update is read)
/// Source: Kimi Linear report (arXiv 2510.26692) equations 1-9. The chunk size changes the order
/// of the work and never the result beyond rounding.
///
/// Example (dense, ready-made decay, f32):
///   kda::ChunkForwardParams p;
///   p.in.q = kda::view_of(q, {B, T, H, K});        p.in.k = kda::view_of(k, {B, T, H, K});
///   p.in.v = kda::view_of(v, {B, T, HV, V});       p.in.g_ln = kda::view_of(g, {B, T, HV, K});
///   p.in.beta = kda::view_of(beta, {B, T, HV});    p.o = kda::view_of(o, {B, T, HV, V});
///   kda::chunk_forward(p);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kda/backend.h"
#include "kda/dims.h"
#include "kda/ops/gate.h"
#include "kda/tensor_view.h"
#include "kda/workspace.h"

namespace kda {

/// What forward, backward and recurrent calls read. All tensors in one memory space; q, k, v, o of
/// one dtype (f64|f32|bf16|f16); the others may be f32 or that dtype (all f64 when q is f64).
/// Any strides, except that the last dimension of q, k, v, g must have stride 1 on the CUDA
/// backend.
struct OperatorInputs {
  ConstTensorView q;  ///< [B,T,H,K]
  ConstTensorView k;  ///< [B,T,H,K]
  ConstTensorView v;  ///< [B,T,HV,V]; HV a multiple of H

  ConstTensorView g_ln;   ///< [B,T,HV,K] natural-log decay <= 0: exactly one of g_ln and g_raw
  ConstTensorView g_raw;  ///< [B,T,HV,K] gate pre-activation, activated by `gate`
  GateParams gate;        ///< parameters of g_raw's activation

  ConstTensorView beta;        ///< [B,T,HV] step size: exactly one of beta and beta_logit
  ConstTensorView beta_logit;  ///< [B,T,HV]: beta = beta_max * sigmoid(beta_logit)
  double beta_max = 1.0;       ///< 1, or 2 to allow negative eigenvalues; with beta_logit only

  bool qk_l2norm = false;       ///< normalise q and k per head first (l2norm.h), rounded to dtype
  std::optional<double> scale;  ///< multiplies q once; absent = 1/sqrt(K)

  /// [N,HV,K,V] f32 (f64 when q is f64), absent = 0. For [N,HV,V,K] memory ("state_vk") pass
  /// `view.transposed(2, 3)`.
  ConstTensorView initial_state_kv;
  ConstTensorView cu_seqlens;  ///< [N+1] i32|i64, 0 = cu[0] <= ... <= cu[N] = T; B must be 1
};

/// One forward call.
struct ChunkForwardParams {
  OperatorInputs in;          ///< q, k, v, gate, beta, initial state
  int chunk = 64;             ///< 16, 32, 64 or 128
  TensorView o;               ///< out, [B,T,HV,V], dtype of q
  TensorView final_state_kv;  ///< out, [N,HV,K,V] f32|f64 as initial_state_kv; absent = not wanted

  /// out, optional: the state at the start of every 64-token block of every sequence,
  /// [num_state_blocks, HV, K, V] contiguous, sequence after sequence; f32 on host backends (f64
  /// when q is f64), bf16 or f32 on the CUDA backend. Give it to the backward call to save the
  /// forward replay.
  TensorView h_kv;

  /// out, optional ("keep"): what the backward would otherwise compute again from the inputs beside
  /// the states, in the backend's own layout. `data` in the tensors' memory space, aligned to
  /// kWorkspaceAlignment; `bytes` = num_state_blocks * chunk_kept_bytes_per_block. Results are
  /// bit-equal with and without it. Null: the backward recomputes.
  Workspace kept;
};

/// One backward call: gradients of what the forward call read.
struct ChunkBackwardParams {
  OperatorInputs in;     ///< as given to the forward call
  int chunk = 64;        ///< 16, 32, 64 or 128
  ConstTensorView h_kv;  ///< from chunk_forward, or absent: states are recomputed
  Workspace kept;        ///< from chunk_forward on the same inputs (only read), or null: recomputed

  ConstTensorView d_o;               ///< [B,T,HV,V] dtype of q; absent = 0
  ConstTensorView d_final_state_kv;  ///< [N,HV,K,V] f32|f64; absent = 0

  // Outputs, written (not accumulated); an absent one is not computed. dq, dk, dv, dg, dbeta in
  // the dtype of the input they belong to or f32; parameters and states in f32 (f64).
  TensorView dq;                  ///< [B,T,H,K], folded over the G value heads
  TensorView dk;                  ///< [B,T,H,K], folded over the G value heads
  TensorView dv;                  ///< [B,T,HV,V]
  TensorView dg;                  ///< [B,T,HV,K]: of g_ln, or of g_raw when that was given
  TensorView dbeta;               ///< [B,T,HV]: of beta, or of beta_logit when that was given
  TensorView da_log;              ///< [HV]
  TensorView d_dt_bias;           ///< [HV,K]
  TensorView d_initial_state_kv;  ///< [N,HV,K,V]
};

/// Shape, dtype, value and backend errors throw kda::Error before anything is written.
void chunk_forward(const ChunkForwardParams& params, const Context& context = {});
/// Errors as of `chunk_forward`.
void chunk_backward(const ChunkBackwardParams& params, const Context& context = {});

/// Scratch bytes that the calls want from `Context::workspace`.
std::size_t chunk_forward_workspace_bytes(const ChunkForwardParams& params,
                                          const Context& context = {});
/// The same for `chunk_backward`.
std::size_t chunk_backward_workspace_bytes(const ChunkBackwardParams& params,
                                           const Context& context = {});

/// First extent of h_kv: the sum over sequences of ceil(length / 64). Reads cu_seqlens on the
/// host; for cu_seqlens in device memory use the bound T / 64 + N.
std::int64_t num_state_blocks(const OperatorInputs& inputs);

/// Bytes of `kept` per 64-token block, all value heads of it, for tensors in `space`. 0: the
/// backend there keeps nothing and ignores `kept` (host backends).
std::size_t chunk_kept_bytes_per_block(const Dims& dims, DType io, MemorySpace space);

/// What kAuto would choose and why (backend.h).
BackendChoice explain_chunk_forward(const ChunkForwardParams& params);
/// The same for `chunk_backward`.
BackendChoice explain_chunk_backward(const ChunkBackwardParams& params);

}  // namespace kda
