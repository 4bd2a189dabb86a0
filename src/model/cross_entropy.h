/// Next-token loss without a [tokens, vocab] tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/batch.h"

namespace kda::model {

/// sum over counted tokens of  log(sum_v exp(x W_v^T)) - x W_target^T.
///
/// hidden [tokens,d] in the activation dtype, head [vocab,d] f32 (f64), targets [tokens] i64 on the
/// host (kIgnoreTarget does not count; such rows cost nothing). Logits are formed for a slice of
/// the tokens at a time; when a gradient is wanted, both gradients are formed in the same pass and
/// only scaled in backward, so that no product is done twice. Returns an f32 (f64) scalar. Throws
/// kInvalidArgument for a target outside the vocabulary.
at::Tensor cross_entropy_sum(const at::Tensor& hidden, const at::Tensor& head,
                             const at::Tensor& targets);

/// The same per token: [tokens] f32 (f64), 0 where ignored; no gradient.
at::Tensor cross_entropy_each(const at::Tensor& hidden, const at::Tensor& head,
                              const at::Tensor& targets);

/// One slice from torch's operators, for f64 on CUDA: losses of the rows of logits; with
/// `gradient` the logits become softmax - onehot. Every target is in range. The host kernel does
/// the same.
at::Tensor reduce_loss_rows_composed(at::Tensor& logits, const at::Tensor& targets, bool gradient);

/// How many targets count.
std::int64_t count_targets(const at::Tensor& targets);

/// Tokens whose logits exist at the same time, for this vocabulary. On CUDA a slice has enough rows
/// for a matrix product to fill the device (1 GiB of logits at most); on the host it fits a cache.
std::int64_t loss_slice_tokens(std::int64_t vocab_size, bool on_cuda = false);

}  // namespace kda::model
