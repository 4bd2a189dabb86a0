/// Counts by formula: parameters, bytes and floating-point operations of a config.
#pragma once

#include <cstdint>

#include "kda/types.h"
#include "model/config.h"

namespace kda::model {

struct ParameterCount {
  std::int64_t embedding = 0;
  std::int64_t head = 0;  ///< 0 when tied
  std::int64_t attention = 0;
  std::int64_t feed_forward = 0;
  std::int64_t norms = 0;
  std::int64_t attn_res = 0;  ///< gains and pseudo-queries of the attention residuals
  std::int64_t inactive = 0;  ///< part of feed_forward: routed experts that a token does not use
  std::int64_t total() const {
    return embedding + head + attention + feed_forward + norms + attn_res;
  }
  std::int64_t active() const { return total() - inactive; }
};

ParameterCount count_parameters(const KDAConfig& config);

/// One training step's shape.
struct TrainingShape {
  std::int64_t tokens_per_micro_batch = 0;
  /// Each leaves a block of 64 tokens of the operator's states partly filled.
  std::int64_t sequences_per_micro_batch = 0;
  bool sizes_vary = false;  ///< micro-batches of different numbers of tokens
  DType compute = DType::kF32;
  bool recompute_blocks = false;
  std::int64_t optimizer_bytes_per_parameter = 8;  ///< AdamW: two f32 moments
  bool on_cuda = false;
};

/// What workspaces of the operator and of libtorch's libraries take on a CUDA device, whatever the
/// model: measured on an H200 as what the formulas miss of small recomputed models.
inline constexpr std::int64_t kCudaWorkspaceBytes = 290'000'000;

/// What backward passes hold for a moment on a CUDA device, as a share of the activations: between
/// 9 and 19 % were missed in the models of docs/measurements/2026-11-30-k3-on-cuda.md.
inline constexpr double kCudaTemporaries = 0.12;

/// What libtorch's allocator holds back on a CUDA device when micro-batches have all sizes, as a
/// share of the activations: a freed block seldom fits the next batch. From one run, whose use of
/// the device rose from 14.9 to 19.7 GiB in 360 steps (docs/measurements/translator).
inline constexpr double kCudaVaryingSizes = 0.35;

/// Beyond libtorch's allocator: the driver's context with the code of the libraries. A device shows
/// it as used; estimates leave it out.
inline constexpr std::int64_t kCudaContextBytes = 500'000'000;

struct MemoryEstimate {
  std::int64_t parameters_bytes = 0;
  std::int64_t gradients_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  std::int64_t activations_bytes = 0;           ///< kept from forward to backward
  std::int64_t activation_bytes_per_token = 0;  ///< of full blocks: without what sequences add
  std::int64_t scratch_bytes = 0;               ///< largest temporary: logits slice, weight copies
  std::int64_t device_bytes = 0;  ///< on CUDA: workspace, temporaries of backward, reserve
  std::int64_t total_bytes() const {
    return parameters_bytes + gradients_bytes + optimizer_bytes + activations_bytes +
           scratch_bytes + device_bytes;
  }
};

MemoryEstimate estimate_training_memory(const KDAConfig& config, const TrainingShape& shape);

/// Bytes of one row's decode state on the host after `num_tokens` tokens; only MLA layers grow.
std::int64_t decode_state_bytes(const KDAConfig& config, std::int64_t num_tokens = 0);

/// Multiply-adds count as 2; of the experts only those that a token uses. Training = 3 x forward
/// (recomputation excluded). `keys` is how many tokens a token attends to in MLA layers: on average
/// (T+1)/2 in a sequence of T.
struct FlopCount {
  double matrices = 0;    ///< 2 x weights of all linear layers and the head
  double recurrence = 0;  ///< 6 K V per value head and layer: the operator's token-serial form
  double convolution = 0;
  double attention_per_key = 0;  ///< 2 H (n + r + v) per MLA layer
  double forward(double keys = 0) const {
    return matrices + recurrence + convolution + keys * attention_per_key;
  }
  double training(double keys = 0) const { return 3 * forward(keys); }
};

FlopCount flops_per_token(const KDAConfig& config);

}  // namespace kda::model
