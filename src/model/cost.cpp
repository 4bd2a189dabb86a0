#include "model/cost.h"

#include <algorithm>

#include "model/cross_entropy.h"

namespace kda::model {
namespace {

std::int64_t gate_input_rows(const KDAConfig& c) {
  return c.full_rank_gate ? c.v_width() : c.gate_low_rank;
}

// Columns of the one product that serves q, k, v, the gate, the decay and beta.
std::int64_t input_columns(const KDAConfig& c) {
  return 2 * c.k_width() + c.v_width() + gate_input_rows(c) + c.gate_low_rank + c.num_v_heads;
}

// Weights of one attention layer that take part in matrix products.
std::int64_t attention_matrices(const KDAConfig& c) {
  std::int64_t count = c.hidden_size * input_columns(c);
  count += c.gate_low_rank * c.decay_width();
  if (!c.full_rank_gate) count += c.gate_low_rank * c.v_width();
  return count + c.v_width() * c.hidden_size;
}

// The same of one MLA layer: query path, latent, its expansion, output gate, output.
std::int64_t mla_matrices(const KDAConfig& c) {
  const MlaConfig& m = c.mla;
  const std::int64_t q_rows = m.num_heads * m.qk_head_dim();
  std::int64_t count =
      m.q_lora_rank > 0 ? m.q_lora_rank * (c.hidden_size + q_rows) : q_rows * c.hidden_size;
  count += c.hidden_size * m.cache_width();
  count += m.kv_lora_rank * m.num_heads * (m.qk_nope_head_dim + m.v_head_dim);
  return count + (m.output_gate ? 2 : 1) * m.v_width() * c.hidden_size;
}

// Weights of a mixture of experts with `experts` routed experts: all of them, or a token's.
std::int64_t moe_matrices(const KDAConfig& c, std::int64_t experts) {
  const MoeConfig& m = c.moe;
  std::int64_t count = m.num_experts * c.hidden_size;  // router
  count += 3 * c.hidden_size * m.shared_width();
  count += 3 * m.expert_input(c.hidden_size) * m.intermediate_size * experts;
  return count + 2 * c.hidden_size * m.latent_size;
}

std::int64_t num_dense_layers(const KDAConfig& c) { return c.num_layers - c.num_moe_layers(); }
std::int64_t num_kda_layers(const KDAConfig& c) { return c.num_layers - c.num_mla_layers(); }

}  // namespace

ParameterCount count_parameters(const KDAConfig& c) {
  ParameterCount count;
  count.embedding = c.vocab_size * c.hidden_size;
  count.head = c.tie_embeddings ? 0 : c.vocab_size * c.hidden_size;
  const std::int64_t conv = (2 * c.k_width() + c.v_width()) * c.conv_size;
  const std::int64_t gate = c.num_v_heads + c.decay_width();
  count.attention = num_kda_layers(c) * (attention_matrices(c) + conv + gate + c.head_v_dim);
  count.attention +=
      c.num_mla_layers() * (mla_matrices(c) + c.mla.kv_lora_rank + c.mla.q_lora_rank);
  count.feed_forward = num_dense_layers(c) * 3 * c.hidden_size * c.intermediate_size;
  const std::int64_t latent_norm = c.moe.latent_norm ? c.moe.latent_size : 0;
  count.feed_forward += c.num_moe_layers() * (moe_matrices(c, c.moe.num_experts) + latent_norm);
  const std::int64_t unused_experts = c.moe.num_experts - c.moe.num_experts_per_token;
  count.inactive = c.num_moe_layers() * 3 * c.moe.expert_input(c.hidden_size) *
                   c.moe.intermediate_size * unused_experts;
  count.norms = (2 * c.num_layers + 1) * c.hidden_size;
  if (c.attn_res.enabled()) count.attn_res = 2 * (2 * c.num_layers + 1) * c.hidden_size;
  return count;
}

namespace {

// Bytes that forward keeps for backward, by token; `narrow` and `wide` are the sizes of an
// activation and of what is computed in f32 (f64), `state` of a number in the operator's states.
struct ElementSizes {
  std::int64_t narrow;
  std::int64_t wide;
  std::int64_t state;
};

constexpr std::int64_t kStateBlock = 64;  // tokens

std::int64_t state_elements(const KDAConfig& c) {
  return c.num_v_heads * c.head_k_dim * c.head_v_dim;
}

// The joint projection (its slices are the convolutions' inputs, the gate, the decay's input and
// beta), the convolutions' outputs, the decay pre-activation, the operator's output and its states
// (one for each block), the gated output.
std::int64_t kept_by_kda(const KDAConfig& c, ElementSizes size) {
  const std::int64_t channels = 2 * c.k_width() + c.v_width();
  const std::int64_t states = state_elements(c) / kStateBlock;
  return states * size.state +
         size.narrow * (input_columns(c) + channels + c.decay_width() + 2 * c.v_width() +
                        (c.full_rank_gate ? 0 : c.v_width()));
}

// The joint projection, the latent before and after its norm (likewise a low-rank query), keys and
// values, padded copies where query and value differ in width, the output with its softmax sums,
// the gated output.
std::int64_t kept_by_mla(const KDAConfig& c, ElementSizes size) {
  const MlaConfig& m = c.mla;
  const std::int64_t q_width = m.num_heads * m.qk_head_dim();
  const std::int64_t width = m.num_heads * std::max(m.qk_head_dim(), m.v_head_dim);
  std::int64_t narrow = (m.q_lora_rank > 0 ? 2 * m.q_lora_rank : 0) + q_width;
  narrow += m.cache_width() + m.kv_lora_rank + (m.output_gate ? 2 * m.v_width() : 0);
  narrow += m.num_heads * (m.qk_nope_head_dim + m.v_head_dim) + width;
  if (m.qk_rope_head_dim > 0) narrow += q_width;
  if (m.qk_head_dim() != m.v_head_dim) {
    narrow += m.qk_head_dim() < m.v_head_dim ? 2 * width : width;
  }
  return size.narrow * narrow + size.wide * (m.kv_lora_rank + m.q_lora_rank + m.num_heads);
}

// Router: the widened input, scores, choices and weights. Experts: the latent, their inner
// activations, places, the sum before and after its norm. The shared experts.
std::int64_t kept_by_moe(const KDAConfig& c, ElementSizes size) {
  const MoeConfig& m = c.moe;
  constexpr std::int64_t kIndex = 8;
  const std::int64_t k = m.num_experts_per_token;
  std::int64_t bytes = size.wide * (m.num_experts + 2 * k + 1) + kIndex * 3 * k;
  if (size.narrow != size.wide) bytes += size.wide * c.hidden_size;
  bytes += size.narrow * 2 * k * m.intermediate_size;
  if (m.latent_size > 0) bytes += size.narrow * 2 * m.latent_size;
  if (m.latent_norm) bytes += size.wide * m.latent_size;
  return bytes + size.narrow * 3 * m.shared_width();
}

// The normed inputs of both sub-layers and what the residual path keeps: its two sums, or with
// attention residuals the two mixtures, the two sources made by the layer, and a logit and a scale
// of every source that a place mixes.
std::int64_t kept_by_residual(const KDAConfig& c, std::int64_t layer, ElementSizes size) {
  const std::int64_t sums = c.hidden_size * (2 * size.wide + 2 * size.narrow);
  const std::int64_t sources = 2 * c.hidden_size * size.wide;
  switch (c.attn_res.mode) {
    case AttnResMode::kOff:
      break;
    case AttnResMode::kBlock: {
      const std::int64_t mixed = layer / c.attn_res.layers_per_block(c.num_layers) + 2;
      return sums + sources + 2 * 2 * mixed * size.wide;
    }
    case AttnResMode::kFull:
      return sums + sources + 2 * (4 * layer + 3) * size.wide;
  }
  return sums;
}

std::int64_t kept_by_layer(const KDAConfig& c, std::int64_t layer, ElementSizes size) {
  std::int64_t bytes = kept_by_residual(c, layer, size);
  bytes += c.is_mla(layer) ? kept_by_mla(c, size) : kept_by_kda(c, size);
  return bytes + (c.is_moe(layer) ? kept_by_moe(c, size) : size.narrow * 3 * c.intermediate_size);
}

// States of blocks that sequences leave partly filled. The operator makes a block for each begun 64
// tokens: half a block more for a long sequence, one for a short one. On a device, where it does
// not know the lengths, it sets a whole block aside for each.
std::int64_t kept_by_sequences(const KDAConfig& c, const TrainingShape& shape, ElementSizes size) {
  const std::int64_t layers = shape.recompute_blocks ? 1 : num_kda_layers(c);
  const std::int64_t sequences = shape.sequences_per_micro_batch;
  const std::int64_t full = shape.tokens_per_micro_batch / kStateBlock;
  const std::int64_t blocks = shape.on_cuda ? sequences : std::max(sequences / 2, sequences - full);
  return blocks * layers * state_elements(c) * size.state;
}

// What a recomputed layer keeps: its input.
std::int64_t kept_input(const KDAConfig& c, ElementSizes size) {
  switch (c.attn_res.mode) {
    case AttnResMode::kOff:
      break;
    case AttnResMode::kBlock:
      return c.hidden_size * size.wide;
    case AttnResMode::kFull:
      return 2 * c.hidden_size * size.wide;
  }
  return c.hidden_size * (size.wide + size.narrow);
}

}  // namespace

MemoryEstimate estimate_training_memory(const KDAConfig& c, const TrainingShape& shape) {
  const std::int64_t parameters = count_parameters(c).total();
  const auto narrow = static_cast<std::int64_t>(size_of(shape.compute));
  const std::int64_t wide = shape.compute == DType::kF64 ? 8 : 4;
  // Host backends keep states in f32 whatever the activations are.
  const ElementSizes size{narrow, wide, shape.on_cuda ? narrow : wide};
  const std::int64_t d = c.hidden_size;

  std::int64_t layers = 0;
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    const std::int64_t layer = kept_by_layer(c, i, size);
    layers += layer;
    largest = std::max(largest, layer);
  }
  // The embedding, the final norm and its gradient.
  const std::int64_t top = d * (size.wide + 3 * size.narrow);

  MemoryEstimate estimate;
  estimate.parameters_bytes = parameters * size.wide;
  estimate.gradients_bytes = parameters * size.wide;
  estimate.optimizer_bytes = parameters * shape.optimizer_bytes_per_parameter;
  estimate.activation_bytes_per_token =
      top + (shape.recompute_blocks ? c.num_layers * kept_input(c, size) + largest : layers);
  estimate.activations_bytes = estimate.activation_bytes_per_token * shape.tokens_per_micro_batch +
                               kept_by_sequences(c, shape, size);
  if (shape.on_cuda) {
    const double share = kCudaTemporaries + (shape.sizes_vary ? kCudaVaryingSizes : 0);
    estimate.device_bytes =
        kCudaWorkspaceBytes +
        static_cast<std::int64_t>(share * static_cast<double>(estimate.activations_bytes));
  }

  const std::int64_t slice =
      std::min(loss_slice_tokens(c.vocab_size), shape.tokens_per_micro_batch);
  const std::int64_t head_gradient = c.vocab_size * d * size.wide;
  const std::int64_t logits = slice * c.vocab_size * size.narrow;
  const std::int64_t inner =
      c.num_moe_layers() > 0
          ? c.moe.num_experts_per_token * c.moe.intermediate_size + c.moe.shared_width()
          : c.intermediate_size;
  const std::int64_t projection_gradient =
      2 * shape.tokens_per_micro_batch * 2 * inner * size.narrow;
  estimate.scratch_bytes = std::max(head_gradient + logits, projection_gradient);
  if (size.narrow != size.wide && c.num_moe_layers() > 0) {
    // Experts' weights in the activation dtype, and their gradient in both.
    const std::int64_t weights =
        c.moe.num_experts * 2 * c.moe.intermediate_size * c.moe.expert_input(d);
    estimate.scratch_bytes = std::max(
        estimate.scratch_bytes, projection_gradient + weights * (2 * size.narrow + size.wide));
  }
  return estimate;
}

std::int64_t decode_state_bytes(const KDAConfig& c, std::int64_t num_tokens) {
  const std::int64_t state = c.num_v_heads * c.head_k_dim * c.head_v_dim;
  const std::int64_t window = (c.conv_size - 1) * (2 * c.k_width() + c.v_width());
  const std::int64_t latents = num_tokens * c.mla.cache_width();
  return (num_kda_layers(c) * (state + window) + c.num_mla_layers() * latents) * 4;
}

FlopCount flops_per_token(const KDAConfig& c) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double kda_layers = number(num_kda_layers(c));
  const double mla_layers = number(c.num_mla_layers());
  FlopCount count;
  count.matrices =
      2 * (kda_layers * number(attention_matrices(c)) + mla_layers * number(mla_matrices(c)) +
           number(num_dense_layers(c)) * number(3 * c.hidden_size * c.intermediate_size) +
           number(c.num_moe_layers()) * number(moe_matrices(c, c.moe.num_experts_per_token)) +
           number(c.vocab_size * c.hidden_size));
  count.recurrence = kda_layers * 6 * number(c.num_v_heads * c.head_k_dim * c.head_v_dim);
  count.convolution = kda_layers * 2 * number(c.conv_size * (2 * c.k_width() + c.v_width()));
  count.attention_per_key =
      mla_layers * 2 * number(c.mla.num_heads * (c.mla.qk_head_dim() + c.mla.v_head_dim));
  return count;
}

}  // namespace kda::model
