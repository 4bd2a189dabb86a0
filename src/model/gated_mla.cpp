#include "model/gated_mla.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/linear.h"
#include "model/output_gate.h"
#include "model/packed_attention.h"
#include "model/rms_norm.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();

// Whether bf16 operands of a batched product should be widened: the host multiplies bf16 slowly
// where it has no instructions for it.
bool widens(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && !has_native_bf16_products(x.device());
}

// x [H,rows,in] in the activation dtype, weight [H,in,out] f32 (f64); the dtype of x.
at::Tensor per_head(const at::Tensor& x, const at::Tensor& weight) {
  if (widens(x)) return at::bmm(x.to(at::kFloat), weight).to(at::kBFloat16);
  return at::bmm(x, weight.to(x.scalar_type()));
}

// Logits in f32 (f64) of operands in the cache's dtype.
at::Tensor wide_products(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kBFloat16) return at::bmm(a, b, at::kFloat);
  return at::bmm(a, b);
}

// The host keeps f32 latents, so that each step need not widen them again.
at::ScalarType cache_type(DType activation, const at::Device& device) {
  const at::ScalarType type = scalar_type_of(activation);
  return device.is_cpu() ? island_type_of(type) : type;
}

// Room for `needed` tokens in every row. Zeros behind the tokens: a masked place counts nothing,
// but 0 times garbage may be NaN.
void reserve(at::Tensor& latent, std::int64_t needed) {
  constexpr std::int64_t kFirst = 64;
  const std::int64_t capacity = latent.size(1);
  if (needed <= capacity) return;
  const at::Tensor larger = at::zeros(
      {latent.size(0), std::max({needed, 2 * capacity, kFirst}), latent.size(2)}, latent.options());
  larger.narrow(1, 0, capacity).copy_(latent);
  latent = larger;
}

}  // namespace

// What x turns into before the attention.
struct GatedMla::Inputs {
  at::Tensor q;           // [tokens,H,n+r]
  at::Tensor latent;      // c, normed [tokens,rho]
  at::Tensor shared_key;  // [tokens,r]; undefined when r = 0
  at::Tensor gate;        // [tokens,H*v], before the sigmoid; undefined without a gate

  // What the cache keeps of each token.
  at::Tensor cached() const {
    return shared_key.defined() ? at::cat({latent, shared_key}, 1) : latent;
  }
};

GatedMla::GatedMla(const MlaConfig& config, std::int64_t hidden_size, const LayerOptions& layer)
    : config_(config), activation_(layer.activation) {
  const at::TensorOptions& options = layer.tensors;
  const std::int64_t q_width = config.num_heads * config.qk_head_dim();
  std::vector<std::int64_t> rows{config.q_lora_rank > 0 ? config.q_lora_rank : q_width,
                                 config.cache_width()};
  if (config.output_gate) rows.push_back(config.v_width());
  const auto inputs = new_neighbours(rows, hidden_size, options);
  q_proj_ = inputs[0];
  kv_a_proj_ = inputs[1];
  if (config.output_gate) g_proj_ = inputs[2];
  if (config.q_lora_rank > 0) {
    q_a_norm_ = new_parameter({config.q_lora_rank}, options);
    q_b_proj_ = new_parameter({q_width, config.q_lora_rank}, options);
  }
  kv_a_norm_ = new_parameter({config.kv_lora_rank}, options);
  kv_b_proj_ = new_parameter(
      {config.num_heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank},
      options);
  o_proj_ = new_parameter({hidden_size, config.v_width()}, options);
}

double GatedMla::scale() const {
  return 1.0 / std::sqrt(static_cast<double>(config_.qk_head_dim()));
}

GatedMla::Inputs GatedMla::project(const at::Tensor& x) const {
  const MlaConfig& c = config_;
  std::vector<at::Tensor> weights{q_proj_, kv_a_proj_};
  if (c.output_gate) weights.push_back(g_proj_);
  const auto out = linear(x, weights);
  const auto normed = [&](const at::Tensor& low_rank, const at::Tensor& gain) {
    return add_rms_norm(low_rank.to(island_type_of(x.scalar_type())), {}, gain, c.latent_norm_eps,
                        activation_)
        .normed;
  };
  Inputs in;
  const at::Tensor q =
      q_b_proj_.defined() ? linear_one(normed(out[0], q_a_norm_), q_b_proj_) : out[0];
  in.q = q.unflatten(1, {c.num_heads, c.qk_head_dim()});
  in.latent = normed(out[1].narrow(1, 0, c.kv_lora_rank), kv_a_norm_);
  if (c.qk_rope_head_dim > 0) {
    in.shared_key = out[1].narrow(1, c.kv_lora_rank, c.qk_rope_head_dim);
  }
  if (c.output_gate) in.gate = out[2];
  return in;
}

at::Tensor GatedMla::expanded_key(const Inputs& in, const at::Tensor& kv) const {
  const at::Tensor k = kv.narrow(2, 0, config_.qk_nope_head_dim);
  if (!in.shared_key.defined()) return k;
  return at::cat({k, in.shared_key.unsqueeze(1).expand({-1, config_.num_heads, -1})}, 2);
}

at::Tensor GatedMla::attend_expanded(const Inputs& in, const Sequences& sequences) const {
  const MlaConfig& c = config_;
  const at::Tensor kv = linear_one(in.latent, kv_b_proj_)
                            .unflatten(1, {c.num_heads, c.qk_nope_head_dim + c.v_head_dim});
  const at::Tensor v = kv.narrow(2, c.qk_nope_head_dim, c.v_head_dim);
  return packed_attention(in.q, expanded_key(in, kv), v, sequences, scale());
}

at::Tensor GatedMla::finish(const at::Tensor& o, const at::Tensor& gate) const {
  const at::Tensor flat = o.reshape({o.size(0), config_.v_width()});
  return linear_one(gate.defined() ? output_gate(flat, gate) : flat, o_proj_);
}

at::Tensor GatedMla::forward(const at::Tensor& x, const Sequences& sequences) const {
  const Inputs in = project(x);
  return finish(attend_expanded(in, sequences), in.gate);
}

// q [tokens,H,n+r] to [tokens,H,rho+r].
at::Tensor GatedMla::absorbed_query(const at::Tensor& q) const {
  const MlaConfig& c = config_;
  const at::Tensor w_uk =
      kv_b_proj_.unflatten(0, {c.num_heads, -1}).narrow(1, 0, c.qk_nope_head_dim);
  const at::Tensor absorbed =
      per_head(q.narrow(2, 0, c.qk_nope_head_dim).transpose(0, 1), w_uk).transpose(0, 1);
  if (c.qk_rope_head_dim == 0) return absorbed;
  return at::cat({absorbed, q.narrow(2, c.qk_nope_head_dim, c.qk_rope_head_dim)}, 2);
}

// Weighted latents [tokens,H,rho] to values [tokens,H,v].
at::Tensor GatedMla::values_of(const at::Tensor& latent) const {
  const MlaConfig& c = config_;
  const at::Tensor w_uv =
      kv_b_proj_.unflatten(0, {c.num_heads, -1}).narrow(1, c.qk_nope_head_dim, c.v_head_dim);
  return per_head(latent.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1);
}

at::Tensor GatedMla::forward_absorbed(const at::Tensor& x, const Sequences& sequences) const {
  const Inputs in = project(x);
  const auto for_all_heads = [&](const at::Tensor& shared) {
    return shared.unsqueeze(1).expand({-1, config_.num_heads, -1});
  };
  const at::Tensor latent = packed_attention(absorbed_query(in.q), for_all_heads(in.cached()),
                                             for_all_heads(in.latent), sequences, scale());
  return finish(values_of(latent), in.gate);
}

at::Tensor GatedMla::largest_logits(const at::Tensor& x, const Sequences& sequences) const {
  const c10::NoGradGuard no_grad;
  const Inputs in = project(x);
  const at::Tensor kv = linear_one(in.latent, kv_b_proj_).unflatten(1, {config_.num_heads, -1});
  return model::largest_logits(in.q, expanded_key(in, kv), sequences, scale());
}

// One token in each of M rows, all rows in one batch: [M,H,v].
at::Tensor GatedMla::step(const Inputs& in, const LayerCache& cache) const {
  const std::int64_t shortest = *std::min_element(cache.past.begin(), cache.past.end()) + 1;
  const std::int64_t longest = *std::max_element(cache.past.begin(), cache.past.end()) + 1;
  at::Tensor latents = cache.state->latent.narrow(1, 0, longest);
  if (cache.rows.defined()) latents = latents.index_select(0, cache.rows);
  const at::Tensor query = absorbed_query(in.q).to(latents.scalar_type());  // [M,H,rho+r]
  at::Tensor logits = wide_products(query, latents.transpose(1, 2)) * scale();
  if (shortest < longest) {
    const at::Tensor place = at::arange(longest, logits.options().dtype(at::kLong));
    const at::Tensor past = index_tensor({cache.past.begin(), cache.past.end()}, logits.device());
    logits.masked_fill_(place.unsqueeze(0).gt(past.unsqueeze(1)).unsqueeze(1), kMasked);
  }
  const at::Tensor p = at::softmax(logits, -1).to(latents.scalar_type());
  const at::Tensor sums = at::bmm(p, latents.narrow(2, 0, config_.kv_lora_rank));
  return values_of(sums.to(in.q.scalar_type()));
}

// Pieces behind cached tokens, sequence by sequence and in blocks of queries that bound the memory
// of the logits: [tokens,H,v].
at::Tensor GatedMla::continued(const Inputs& in, const Sequences& sequences,
                               const LayerCache& cache) const {
  constexpr std::int64_t kLogits = std::int64_t{1} << 22;
  const MlaConfig& c = config_;
  const at::Tensor& latent = cache.state->latent;
  const at::Tensor query = absorbed_query(in.q).to(latent.scalar_type());  // [tokens,H,rho+r]
  const at::Tensor sums = at::empty({query.size(0), c.num_heads, c.kv_lora_rank}, in.q.options());
  const auto cu = host_span(sequences.cu_host);
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    if (cu[n + 1] == cu[n]) continue;
    const std::int64_t past = cache.past[n];
    const std::int64_t total = past + cu[n + 1] - cu[n];
    const std::int64_t block = std::max<std::int64_t>(1, kLogits / (c.num_heads * total));
    const at::Tensor seen = latent.select(0, cache.row(n)).unsqueeze(0);  // [1,capacity,rho+r]
    for (std::int64_t begin = cu[n]; begin < cu[n + 1]; begin += block) {
      const std::int64_t rows = std::min(block, cu[n + 1] - begin);
      const std::int64_t before = past + begin - cu[n];
      const at::Tensor keys = seen.narrow(1, 0, before + rows);
      const at::Tensor queries = query.narrow(0, begin, rows).flatten(0, 1).unsqueeze(0);
      at::Tensor logits = wide_products(queries, keys.transpose(1, 2)) * scale();
      logits = logits.view({rows, c.num_heads, before + rows});
      const at::Tensor later =
          at::ones({rows, before + rows}, logits.options().dtype(at::kBool)).triu(before + 1);
      logits.masked_fill_(later.unsqueeze(1), kMasked);
      const at::Tensor p = at::softmax(logits, -1).to(latent.scalar_type());
      sums.narrow(0, begin, rows)
          .copy_(at::bmm(p.view({1, rows * c.num_heads, before + rows}),
                         keys.narrow(2, 0, c.kv_lora_rank))
                     .view({rows, c.num_heads, c.kv_lora_rank}));
    }
  }
  return values_of(sums);
}

at::Tensor GatedMla::forward_cached(const at::Tensor& x, const Sequences& sequences,
                                    const LayerCache& cache) const {
  const Inputs in = project(x);
  at::Tensor& latent = cache.state->latent;
  const auto cu = host_span(sequences.cu_host);
  std::int64_t needed = 0;
  std::int64_t cached = 0;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    needed = std::max(needed, cache.past[n] + cu[n + 1] - cu[n]);
    if (cu[n + 1] > cu[n]) cached = std::max(cached, cache.past[n]);
  }
  reserve(latent, needed);
  std::vector<std::int64_t> places;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    const std::int64_t first = cache.row(n) * latent.size(1) + cache.past[n];
    for (std::int64_t t = 0; t < cu[n + 1] - cu[n]; ++t)
      places.push_back(first + t);
  }
  latent.flatten(0, 1).index_copy_(0, index_tensor(places, latent.device()),
                                   in.cached().to(latent.scalar_type()));
  at::Tensor o;
  if (sequences.one_token_each) {
    o = step(in, cache);
  } else if (cached == 0) {
    o = attend_expanded(in, sequences);
  } else {
    o = continued(in, sequences, cache);
  }
  return finish(o, in.gate);
}

void GatedMla::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  using Kind = ParameterKind;
  const std::int64_t heads = config_.num_heads;
  const auto add = [&](const char* name, const at::Tensor& tensor, Kind kind,
                       std::int64_t blocks = 1) {
    parameters.push_back({prefix + name, tensor, kind, blocks});
  };
  if (q_b_proj_.defined()) {
    add("q_a_proj.weight", q_proj_, Kind::kMatrix);
    add("q_a_layernorm.weight", q_a_norm_, Kind::kNorm);
    add("q_b_proj.weight", q_b_proj_, Kind::kMatrix, heads);
  } else {
    add("q_proj.weight", q_proj_, Kind::kMatrix, heads);
  }
  add("kv_a_proj_with_mqa.weight", kv_a_proj_, Kind::kMatrix);
  add("kv_a_layernorm.weight", kv_a_norm_, Kind::kNorm);
  add("kv_b_proj.weight", kv_b_proj_, Kind::kMatrix, heads);
  if (g_proj_.defined()) add("g_proj.weight", g_proj_, Kind::kMatrix, heads);
  add("o_proj.weight", o_proj_, Kind::kMatrix);
}

LayerState GatedMla::new_state(std::int64_t num_rows) const {
  const auto options =
      at::TensorOptions().dtype(cache_type(activation_, o_proj_.device())).device(o_proj_.device());
  LayerState state;
  state.latent = at::zeros({num_rows, 0, config_.cache_width()}, options);
  return state;
}

}  // namespace kda::model
