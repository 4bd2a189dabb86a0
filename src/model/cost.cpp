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

MemoryEstimate estimate_training_memory(const KDAConfig& c, const TrainingShape& shape) {
  const std::int64_t parameters = count_parameters(c).total();
  const std::int64_t wide = shape.compute == DType::kF64 ? 8 : 4;
  const std::int64_t narrow = static_cast<std::int64_t>(size_of(shape.compute));
  const std::int64_t d = c.hidden_size;
  const std::int64_t channels = 2 * c.k_width() + c.v_width();

  // Per token and layer, what forward keeps: the two residual sums, the two normed inputs, the
  // joint projection (its slices are the convolutions' inputs, the gate, the decay's input and
  // beta), the convolutions' outputs, the decay pre-activation, the operator's output and its
  // states (one per 64 tokens), the gated output, gate and up, their product.
  const std::int64_t states = c.num_v_heads * c.head_k_dim * c.head_v_dim / 64;
  const std::int64_t layer =
      2 * d * wide + states * wide +
      narrow * (2 * d + input_columns(c) + channels + c.decay_width() + 2 * c.v_width() +
                3 * c.intermediate_size + (c.full_rank_gate ? 0 : c.v_width()));
  const std::int64_t boundary = d * (wide + narrow);  // a block's input
  const std::int64_t top = d * (wide + 3 * narrow);   // embedding, final norm and its gradient

  MemoryEstimate estimate;
  estimate.parameters_bytes = parameters * wide;
  estimate.gradients_bytes = parameters * wide;
  estimate.optimizer_bytes = parameters * shape.optimizer_bytes_per_parameter;
  estimate.activation_bytes_per_token =
      top + (shape.recompute_blocks ? c.num_layers * boundary + layer : c.num_layers * layer);
  estimate.activations_bytes = estimate.activation_bytes_per_token * shape.tokens_per_micro_batch;

  const std::int64_t slice =
      std::min(loss_slice_tokens(c.vocab_size), shape.tokens_per_micro_batch);
  const std::int64_t head_gradient = c.vocab_size * d * wide;
  const std::int64_t logits = slice * c.vocab_size * narrow;
  const std::int64_t projection_gradient =
      2 * shape.tokens_per_micro_batch * 2 * c.intermediate_size * narrow;
  estimate.scratch_bytes = std::max(head_gradient + logits, projection_gradient);
  return estimate;
}

std::int64_t decode_state_bytes(const KDAConfig& c) {
  const std::int64_t state = c.num_v_heads * c.head_k_dim * c.head_v_dim;
  const std::int64_t window = (c.conv_size - 1) * (2 * c.k_width() + c.v_width());
  return c.num_layers * (state + window) * 4;
}

FlopCount flops_per_token(const KDAConfig& c) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double layers = number(c.num_layers);
  FlopCount count;
  count.matrices =
      2 * (layers * number(attention_matrices(c) + 3 * c.hidden_size * c.intermediate_size) +
           number(c.vocab_size * c.hidden_size));
  count.recurrence = layers * 6 * number(c.num_v_heads * c.head_k_dim * c.head_v_dim);
  count.convolution = layers * 2 * number(c.conv_size * (2 * c.k_width() + c.v_width()));
  return count;
}

}  // namespace kda::model
