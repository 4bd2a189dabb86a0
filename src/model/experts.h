/// The bank of routed experts: u_t = sum_j p_tj E_j(z_t) over the chosen experts of each token.
///
///   E_j(z) = W2_j act(W1_j z, W3_j z)
/// Tokens are sorted by expert, each expert sees its own in one product, and the results are
/// gathered back in the order of the choices: no atomic additions, the same bits every time.
/// Experts without tokens cost nothing and get a zero gradient. On CUDA with bf16 activations the
/// products of all experts are one grouped call and nothing waits for the device; otherwise (f32,
/// f64, or rows that are not multiples of 16 bytes) the token counts are read back once a call.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_config.h"

namespace kda::model {

/// z [tokens,l] in the activation dtype; weights p [tokens,k] f32 (f64); experts [tokens,k] i64;
/// gate_up [E,2I,l] (rows of W1, then of W3) and down [E,l,I] f32 (f64). Returns u [tokens,l] f32
/// (f64): expert outputs in the activation dtype, weighted and summed in f32. Differentiable with
/// respect to z, weights, gate_up and down.
at::Tensor expert_sum(const at::Tensor& z, const at::Tensor& weights, const at::Tensor& experts,
                      const at::Tensor& gate_up, const at::Tensor& down,
                      const Activation& activation);

}  // namespace kda::model
