/// Token sequences laid end to end: the only input form of the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kda::model {

/// Target value that does not count in the loss.
inline constexpr std::int64_t kIgnoreTarget = -100;

/// Sequences packed into rows. The rows of a [B,T] tensor are one flat run of B*T tokens;
/// recurrent state and convolution start anew at every boundary, so sequences never see each
/// other. There is no padding: rows of different lengths are packed.
struct PackedIds {
  at::Tensor ids;         ///< [tokens] or [B,T] i64, every id in [0, vocab)
  at::Tensor cu_seqlens;  ///< [N+1] i64 on the host: 0 = cu[0] <= ... <= cu[N] = B*T; undefined:
                          ///< every row of ids is one sequence

  std::int64_t num_tokens() const;
  std::int64_t num_sequences() const;
  at::Tensor boundaries() const;  ///< cu_seqlens, also where it was left undefined
};

/// Packs prompts of any lengths; throws kInvalidArgument when there is none or one is empty.
PackedIds pack(const std::vector<std::vector<std::int64_t>>& sequences);

/// Throws kInvalidArgument naming ids or cu_seqlens; reads every id once.
void check(const PackedIds& packed, std::int64_t vocab_size);

}  // namespace kda::model
