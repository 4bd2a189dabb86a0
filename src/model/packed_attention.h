/// Causal softmax attention inside each sequence of a packed run.
///
///   o_t = sum_{j <= t} softmax_j(scale <q_t, k_j>) v_j,  j in the sequence of t
/// One call for each sequence or one kernel that knows the boundaries: a mask over the whole run is
/// never formed. Softmax in f32 (f64).
#pragma once

#include <ATen/core/Tensor.h>

#include "model/sequences.h"

namespace kda::model {

/// q and k [tokens,H,K], v [tokens,H,V], of one dtype, any strides (a head dimension of stride 0
/// is a key or value shared by the heads); returns [tokens,H,V] in the same dtype. K and V may
/// differ; the narrower one is padded with zeros, which changes nothing. Differentiable; the
/// gradients' sums run in a fixed order. Kernels: libtorch's flash attention on the host and on
/// CUDA in bf16, its memory-efficient attention on CUDA in f32.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Sequences& sequences, double scale);

/// The same from torch's basic operators with a [T,T] matrix for each sequence: f64 on CUDA
/// devices, and a second opinion in the tests.
at::Tensor packed_attention_composed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const Sequences& sequences, double scale);

/// The largest scaled logit of each head over the run, [H] f32 (f64); no gradient. What QK-Clip
/// looks at. Computed apart, in blocks of queries: as many products as half a forward.
at::Tensor largest_logits(const at::Tensor& q, const at::Tensor& k, const Sequences& sequences,
                          double scale);

}  // namespace kda::model
