/// The operator on at::Tensor: what the model layers call. Same mathematics, names and limits as
/// include/kda/ops/*.h; gradients are recorded by autograd.
///
/// Errors are kda::Error with the texts of the library (backward errors reach the caller of
/// `backward()` as c10::Error). Link the target kda_torch: loading it registers the torch operators
/// `kda::*`, which Python reaches as `torch.ops.kda.*`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace kda::binding {

/// Arguments of the sequence operators. Tensors may be strided; q, k, v have one dtype
/// (f64|f32|bf16|f16). All narrower operands are widened without loss where the operator wants f32
/// (f64 when q is f64); their gradients come back in the dtype and shape that was given.
struct KdaArguments {
  at::Tensor q;     ///< [B,T,H,K]
  at::Tensor k;     ///< [B,T,H,K]
  at::Tensor v;     ///< [B,T,HV,V], HV a multiple of H
  at::Tensor g;     ///< [B,T,HV,K]: natural-log decay <= 0, or the pre-activation with `raw_gate`
  at::Tensor beta;  ///< [B,T,HV]: step size, or its logit with `beta_is_logit`. recurrent_kda also
                    ///< takes [B,T,HV,V], a ready-made step size per value channel

  std::optional<at::Tensor> a_log;          ///< HV elements in any shape; with `raw_gate` only
  std::optional<at::Tensor> dt_bias;        ///< [HV,K] or [HV*K]; with `raw_gate` only
  std::optional<at::Tensor> initial_state;  ///< [N,HV,K,V], or [N,HV,V,K] with `state_v_first`
  std::optional<at::Tensor> cu_seqlens;     ///< [N+1] i32|i64 token offsets of packed rows (B = 1)

  std::optional<double> scale;        ///< multiplies q once; absent = 1/sqrt(K)
  std::optional<double> lower_bound;  ///< < 0 selects the safe gate; with `raw_gate` only
  bool raw_gate = false;              ///< g is a pre-activation, see kda/ops/gate.h
  bool beta_is_logit = false;         ///< beta = beta_max * sigmoid(beta)
  double beta_max = 1.0;              ///< 1, or 2 to allow negative eigenvalues (logits only)
  bool qk_l2norm = false;             ///< normalise q and k per head first
  bool state_v_first = false;         ///< states are [N,HV,V,K], in and out
  bool output_final_state = false;
  std::int64_t chunk = 64;       ///< tokens per chunk: 16, 32, 64 or 128 (chunk_kda only)
  std::string backend = "auto";  ///< "auto", "ref", "cpu" or "cuda"

  /// chunk_kda, when a gradient is wanted: keep the state at every 64th token for the backward pass
  /// (4*K*V/64 bytes per token and value head), or replay the forward pass there instead.
  bool keep_states = true;

  /// The same for what is made of the inputs before the scans, on backends that can keep it (CUDA:
  /// about 6 K + 260 bytes per token and value head): otherwise it is computed again.
  bool keep_factors = false;
};

/// Gated RMS norm of a recurrent call's output (kda/ops/recurrent.h, OutputNorm); absent weight:
/// none.
struct OutputNormArguments {
  std::optional<at::Tensor> weight;  ///< [V]; narrower floats are widened
  std::optional<at::Tensor> gate;    ///< [B,T,HV,V], before the sigmoid
  double eps = 1e-5;
};

/// Output [B,T,HV,V] in the dtype of q, and the final state in f32 (f64 when q is f64), present
/// when `output_final_state`. Differentiable once with respect to q, k, v, g, beta, a_log, dt_bias
/// and initial_state.
std::tuple<at::Tensor, std::optional<at::Tensor>> chunk_kda(const KdaArguments& arguments);

/// The same token by token, for generation. Backward through its outputs is an error.
std::tuple<at::Tensor, std::optional<at::Tensor>> recurrent_kda(
    const KdaArguments& arguments, const OutputNormArguments& norm = {});

/// Where the states of a generation engine live (kda/ops/recurrent.h, StatePool).
struct PoolArguments {
  at::Tensor pool;   ///< [S,HV,K,V] ([S,HV,V,K] with `state_v_first`), f32|bf16 (f64): updated
  at::Tensor slots;  ///< [N] or [N,Tmax] i32|i64; negative = skipped
  std::optional<at::Tensor> num_accepted;  ///< [N] i32|i64, with 2-D slots only
};

/// Decode step on a pool of states, in place; returns the output [B,T,HV,V]. `arguments` has no
/// initial_state and no output_final_state. Not differentiable.
at::Tensor recurrent_kda_pool(const KdaArguments& arguments, const PoolArguments& pool,
                              const OutputNormArguments& norm = {});

/// Gate alone: g_raw [...,HV,K] to the natural-log decay, f32 (f64 when g_raw is f64), of the same
/// shape. Differentiable once with respect to g_raw, a_log and dt_bias.
at::Tensor gate(const at::Tensor& g_raw, const std::optional<at::Tensor>& a_log,
                const std::optional<at::Tensor>& dt_bias, std::optional<double> lower_bound);

/// x [B,T,H,K] divided by sqrt(sum over K of x^2 + eps), in the dtype of x. Differentiable once.
at::Tensor l2norm(const at::Tensor& x, double eps = 1e-6);

/// One thread setting for the process: this library's, torch's intra-op and thereby MKL's pools.
/// `count` <= 0 restores the default (OMP_NUM_THREADS, else the cores this process may use). Like
/// every OpenMP setting it counts for regions entered from the calling thread.
void set_num_threads(int count);

/// The number in effect.
int num_threads();

/// Loads libkda_torch_cuda.so, which lies beside libkda_torch.so, and with it torch's CUDA parts:
/// from then on backend "cuda" serves tensors in device memory. Call it before any other use of
/// torch, whose CUDA hooks are fixed by the first one. Throws kUnsupported when it cannot be
/// loaded.
void load_cuda_library();

}  // namespace kda::binding
