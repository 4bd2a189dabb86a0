/// The language model: embedding, blocks, final norm, head, loss.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kda/types.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/decode_state.h"
#include "model/parameter.h"
#include "model/quantile_balance.h"

namespace kda::model {

/// How a model is made.
struct ModelOptions {
  /// Precision of activations and matrix products: kF32, kBF16, or kF64 (tests). Parameters stay
  /// f32 (f64 for kF64) and norms, gates, the recurrent state, softmax and loss are computed in
  /// f32 whatever it is. kF16 is refused: the decay products overflow its range.
  DType compute = DType::kF32;
  c10::Device device = c10::kCPU;
  std::uint64_t seed = 0;        ///< of the initial weights: same seed, same bits, on every machine
  std::string backend = "auto";  ///< of the KDA operator: "auto", "ref", "cpu" or "cuda"
  BalanceOptions balance;        ///< how experts are balanced (mixtures of experts only)
};

/// Called with each activation as it is computed, in order: "embed", "layers.3.attn",
/// "layers.3.mlp", "layers.3", "norm". Must not modify the tensor.
using ActivationObserver = std::function<void(const std::string& name, const at::Tensor& value)>;

/// The largest attention logit of each head of an MLA layer: what QK-Clip limits.
struct LargestLogits {
  std::int64_t layer = 0;
  at::Tensor logits;  ///< [H] f32 (f64)
};

struct ForwardOptions {
  const ActivationObserver* observer = nullptr;
  bool recompute_blocks = false;  ///< keep only block inputs for backward: less memory, more time
  /// Whether a loss with gradients counts its routing for `update_routing`. Not for losses whose
  /// gradients are thrown away.
  bool count_routing = true;
  std::vector<LargestLogits>* largest_logits = nullptr;  ///< appended to, one entry an MLA layer
};

/// How evenly the tokens of a step went to the experts of a layer; 1 is even.
struct RoutingLoad {
  std::int64_t layer = 0;
  double max_load = 0;  ///< tokens of the busiest expert over the mean
  double min_load = 0;
};

/// Sum of the cross entropies and what it is a sum of. The mean is sum / num_tokens; with
/// accumulation divide by the token count of the whole step, never average the means.
struct LossOutput {
  at::Tensor loss_sum;          ///< f32 scalar (f64 model: f64), natural log, differentiable
  std::int64_t num_tokens = 0;  ///< targets that are not kIgnoreTarget; 0 gives loss_sum = 0
};

class CausalLM {
 public:
  /// Checks the config, allocates and initialises the parameters.
  CausalLM(const KDAConfig& config, const ModelOptions& options);
  ~CausalLM();
  CausalLM(CausalLM&&) noexcept;
  CausalLM& operator=(CausalLM&&) noexcept;

  const KDAConfig& config() const;
  DType compute() const;
  c10::Device device() const;

  /// All trained parameters in a fixed order (embedding, blocks, norm, head); the tied head is not
  /// listed again. Assigning to `tensor.mutable_grad()` or updating `tensor` in place acts on the
  /// model.
  std::vector<Parameter> parameters() const;
  std::int64_t num_parameters() const;

  /// What is part of the model and of its weight file but not trained: selection biases of experts.
  std::vector<Parameter> buffers() const;

  /// To be called after each optimizer step: sets the selection biases of all experts from the
  /// routing counted since the last call and forgets it. Nothing happens in models without experts.
  void update_routing();

  /// Forgets the routing counted since then, for a step that is skipped.
  void discard_routing();

  /// The loads counted since the last `update_routing`, one entry for each layer with experts;
  /// waits for the device.
  std::vector<RoutingLoad> routing_loads() const;

  /// Next-token loss. `targets[i]` is the token that follows `ids[i]` in its own sequence, or
  /// kIgnoreTarget: the packer shifts, so no sequence predicts the next one's first token. Logits
  /// exist only for a slice of the tokens at a time.
  LossOutput loss(const PackedIds& packed, const at::Tensor& targets,
                  const ForwardOptions& options = {}) const;

  /// Cross entropy of each token [tokens] f32, 0 where ignored; no gradient.
  at::Tensor token_losses(const PackedIds& packed, const at::Tensor& targets) const;

  /// Logits [tokens, vocab] f32 of every position; no gradient. For tests and short inputs.
  at::Tensor logits(const PackedIds& packed, const ForwardOptions& options = {}) const;

  /// A state for `num_rows` sequences, all empty.
  DecodeState new_state(std::int64_t num_rows) const;

  /// Feeds the next piece of every row (packed sequence n belongs to row n, any lengths, also 0)
  /// and returns the logits [N, vocab] f32 after each row's last token (a row without tokens gets
  /// zeros). Any cut of a prompt into pieces gives the same result up to rounding.
  at::Tensor prefill(const PackedIds& pieces, DecodeState& state,
                     const ForwardOptions& options = {}) const;

  /// Feeds one token per row, ids [N] i64; logits [N, vocab] f32.
  at::Tensor step(const at::Tensor& ids, DecodeState& state) const;

  /// The same for some rows of the state, all different: ids [M] and logits [M, vocab] belong to
  /// `rows`; the other rows stay as they are.
  at::Tensor step_rows(const at::Tensor& ids, const std::vector<std::int64_t>& rows,
                       DecodeState& state) const;

  /// Name of the first activation of `packed` that holds NaN or infinity, or "" when all are
  /// finite; "logits" when only the head's output is not.
  std::string first_nonfinite(const PackedIds& packed) const;

  /// 64-bit fingerprint of config and weights: ties saved decode states to their model.
  std::uint64_t fingerprint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kda::model
