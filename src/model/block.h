/// One decoder layer: attention, then feed-forward, each behind its norm.
///
/// Without attention residuals:  h += attention(norm(h));  h += feed_forward(norm(h)).
/// With them, R the finished sources, x the running one, layer l of blocks of n layers:
///   h = x if R is empty, else attn_res(R + {x});  at l mod n = 0 x joins R and starts anew
///   a = attention(norm(h));  x = a, or x + a
///   h = attn_res(R + {x});  x = x + feed_forward(norm(h))
/// Mode full: every sub-layer's output becomes a source of its own. At the first layer R is empty,
/// so the first two attention-residual parameters take no part and get no gradient. Sources: Kimi
/// K3 report (arXiv 2607.24653) section 2.2; Attention Residuals (arXiv 2603.15031).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kda/types.h"
#include "model/attn_res.h"
#include "model/depth.h"
#include "model/gated_mla.h"
#include "model/gated_mlp.h"
#include "model/kda_attention.h"
#include "model/latent_moe.h"
#include "model/rms_norm.h"

namespace kda::model {

/// Observers get each sub-layer's output: ("attn", value), ("mlp", value).
using BlockObserver = std::function<void(const char* part, const at::Tensor& value)>;

/// How one call of a block runs.
struct BlockCall {
  LayerCache cache;  ///< with a state the layer continues from it, without gradient
  const BlockObserver* observer = nullptr;
  RoutingStatistics* statistics = nullptr;  ///< where experts count their tokens; null: nowhere
  at::Tensor* largest_logits = nullptr;     ///< set by MLA layers, see GatedMla::largest_logits
};

class Block {
 public:
  /// `index` counts the layers from 0.
  Block(const KDAConfig& config, std::int64_t index, const LayerOptions& layer);

  Depth forward(const Depth& input, const Sequences& sequences, const BlockCall& call) const;

  /// The same result and gradients; only `input` is kept for backward, and forward runs again
  /// then: with the same routing, counted once. Without cache and observer.
  Depth forward_recomputed(const Depth& input, const Sequences& sequences,
                           const BlockCall& call) const;

  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;
  /// What is saved but not trained.
  void collect_buffers(const std::string& prefix, std::vector<Parameter>& buffers) const;
  LayerState new_state(std::int64_t num_rows) const;

  const GatedMla* mla() const { return std::get_if<GatedMla>(&attention_); }
  const LatentMoe* moe() const { return std::get_if<LatentMoe>(&feed_forward_); }

 private:
  at::Tensor attend(const at::Tensor& x, const Sequences& sequences, const BlockCall& call) const;
  at::Tensor feed(const at::Tensor& x, const BlockCall& call) const;
  NormedSum input_normed(const at::Tensor& h, const at::Tensor& delta) const;
  NormedSum post_attention_normed(const at::Tensor& h, const at::Tensor& delta) const;
  Depth forward_plain(const Depth& input, const Sequences& sequences, const BlockCall& call) const;
  Depth forward_attn_res(const Depth& input, const Sequences& sequences,
                         const BlockCall& call) const;

  double norm_eps_;
  DType activation_;
  AttnResMode mode_;
  bool starts_block_;  // attention residuals: the running source is finished before this layer
  at::Tensor input_norm_, post_attention_norm_;  // [d]
  std::variant<KdaAttention, GatedMla> attention_;
  std::variant<GatedMlp, LatentMoe> feed_forward_;
  std::optional<AttnResWeights> attention_res_, mlp_res_;
};

}  // namespace kda::model
