/// Shapes of the layers that a model may add to plain Kimi Delta Attention, each off by default.
///
/// Kept apart from the whole config so that a layer depends on its own numbers only. Sources: Kimi
/// K3 report (arXiv 2607.24653), Kimi Linear report (arXiv 2510.26692), Attention Residuals (arXiv
/// 2603.15031).
#pragma once

#include <algorithm>
#include <cstdint>

namespace kda::model {

/// Multi-head latent attention without positions (gated_mla.h).
struct MlaConfig {
  std::int64_t num_heads = 0;         ///< H
  std::int64_t q_lora_rank = 0;       ///< rank of the query path; 0: one full matrix
  std::int64_t kv_lora_rank = 0;      ///< rho, width of the cached latent
  std::int64_t qk_nope_head_dim = 0;  ///< n, per-head part of query and key
  std::int64_t qk_rope_head_dim = 0;  ///< r, key part shared by the heads; never rotated, may be 0
  std::int64_t v_head_dim = 0;        ///< v
  bool output_gate = true;            ///< o * sigmoid(x W_g^T), the K3 form
  double latent_norm_eps = 1e-6;      ///< of the norms inside the low-rank paths

  bool operator==(const MlaConfig&) const = default;
  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }  ///< n + r
  std::int64_t cache_width() const { return kv_lora_rank + qk_rope_head_dim; }      ///< rho + r
  std::int64_t v_width() const { return num_heads * v_head_dim; }                   ///< H*v
};

/// Mixture of experts, plain or latent (latent_moe.h).
struct MoeConfig {
  std::int64_t num_experts = 0;            ///< E; 0: every feed-forward layer is dense
  std::int64_t num_experts_per_token = 0;  ///< k
  std::int64_t num_shared_experts = 0;     ///< full-width experts that serve every token
  std::int64_t intermediate_size = 0;      ///< I, width of one expert
  std::int64_t latent_size = 0;            ///< width the routed experts read; 0: the full width
  bool latent_norm = false;                ///< RMSNorm between weighted sum and up-projection
  bool renormalize = true;                 ///< chosen scores sum to routed_scaling_factor
  double routed_scaling_factor = 1.0;
  std::int64_t num_groups = 1;   ///< experts are chosen inside the best groups
  std::int64_t topk_groups = 1;  ///< how many groups
  /// Mixture weights contain the selection bias, as Kimi-Linear's released code has it; false is
  /// what the reports define.
  bool weights_include_bias = false;

  bool operator==(const MoeConfig&) const = default;
  bool enabled() const { return num_experts > 0; }
  std::int64_t shared_width() const { return num_shared_experts * intermediate_size; }
  std::int64_t expert_input(std::int64_t hidden_size) const {
    return latent_size > 0 ? latent_size : hidden_size;
  }
};

enum class ActivationKind : std::uint8_t { kSilu, kSitu };

/// The activation of all feed-forward layers: SwiGLU (swiglu.h) or SiTU-GLU (situ_glu.h).
struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  double situ_beta = 4.0;          ///< cap of the gate branch
  double situ_linear_beta = 25.0;  ///< cap of the linear branch; 0: none

  bool operator==(const Activation&) const = default;
};

enum class AttnResMode : std::uint8_t { kOff, kBlock, kFull };

/// Attention over depth instead of residual additions (attn_res.h).
struct AttnResConfig {
  AttnResMode mode = AttnResMode::kOff;
  std::int64_t block_size = 0;  ///< decoder layers a block sums, mode kBlock; 0: about L/8

  bool operator==(const AttnResConfig&) const = default;
  bool enabled() const { return mode != AttnResMode::kOff; }
  std::int64_t layers_per_block(std::int64_t num_layers) const {
    return block_size > 0 ? block_size : std::max<std::int64_t>(1, (num_layers + 4) / 8);
  }
};

const char* name_of(ActivationKind kind);  ///< "silu", "situ"
const char* name_of(AttnResMode mode);     ///< "off", "block", "full"

}  // namespace kda::model
