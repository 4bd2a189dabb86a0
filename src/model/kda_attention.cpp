#include "model/kda_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "model/gated_norm.h"
#include "model/linear.h"
#include "model/new_parameter.h"
#include "model/observe.h"
#include "model/short_conv.h"
#include "model/tensors.h"

namespace kda::model {

template <>
struct ObservedParts<binding::KdaArguments> {
  template <typename Visit>
  static void tensors(binding::KdaArguments& value, Visit&& visit) {
    visit("q", value.q);
    visit("k", value.k);
    visit("v", value.v);
    visit("g", value.g);
    visit("beta", value.beta);
    if (value.a_log) visit("a_log", *value.a_log);
    if (value.dt_bias) visit("dt_bias", *value.dt_bias);
    if (value.initial_state) visit("initial_state", *value.initial_state);
    if (value.cu_seqlens) visit("cu_seqlens", *value.cu_seqlens);
  }
  static void attributes(const binding::KdaArguments& value, const char*,
                         std::vector<Attribute>& out) {
    if (value.scale) out.push_back({"scale", *value.scale});
    if (value.lower_bound) out.push_back({"lower_bound", *value.lower_bound});
    out.push_back({"raw_gate", value.raw_gate});
    out.push_back({"beta_is_logit", value.beta_is_logit});
    out.push_back({"beta_max", value.beta_max});
    out.push_back({"qk_l2norm", value.qk_l2norm});
    out.push_back({"output_final_state", value.output_final_state});
    out.push_back({"chunk", value.chunk});
    out.push_back({"backend", value.backend});
  }
};

template <>
struct ObservedParts<binding::PoolArguments> {
  template <typename Visit>
  static void tensors(binding::PoolArguments& value, Visit&& visit) {
    visit("pool", value.pool);
    visit("slots", value.slots);
  }
};

// What x turns into before the convolutions and the operator.
struct KdaAttention::Inputs {
  at::Tensor q, k, v;     // [tokens, H*K | H*K | HV*V], before the convolution
  at::Tensor g_raw;       // [tokens, HV*K]
  at::Tensor beta_logit;  // [tokens, HV]
  at::Tensor gate;        // [tokens, HV*V], before the sigmoid
};

KdaAttention::KdaAttention(const KDAConfig& config, const LayerOptions& layer)
    : config_(config), backend_(layer.backend) {
  const at::TensorOptions& options = layer.tensors;
  const std::int64_t d = config.hidden_size;
  const std::int64_t r = config.gate_low_rank;
  const std::int64_t gate_rows = config.full_rank_gate ? config.v_width() : r;
  const auto inputs = new_neighbours(
      {config.k_width(), config.k_width(), config.v_width(), gate_rows, r, config.num_v_heads}, d,
      options);
  q_proj_ = inputs[0];
  k_proj_ = inputs[1];
  v_proj_ = inputs[2];
  g_proj_ = inputs[3];
  f_a_proj_ = inputs[4];
  b_proj_ = inputs[5];
  if (!config.full_rank_gate) g_b_proj_ = new_parameter({config.v_width(), r}, options);
  f_b_proj_ = new_parameter({config.decay_width(), r}, options);
  q_conv_ = new_parameter({config.k_width(), 1, config.conv_size}, options);
  k_conv_ = new_parameter({config.k_width(), 1, config.conv_size}, options);
  v_conv_ = new_parameter({config.v_width(), 1, config.conv_size}, options);
  a_log_ = new_parameter({config.num_v_heads}, options);
  dt_bias_ = new_parameter({config.decay_width()}, options);
  o_norm_ = new_parameter({config.head_v_dim}, options);
  o_proj_ = new_parameter({d, config.v_width()}, options);
}

KdaAttention::Inputs KdaAttention::project(const at::Tensor& x) const {
  const auto out = linear(x, {q_proj_, k_proj_, v_proj_, g_proj_, f_a_proj_, b_proj_});
  Inputs in;
  in.q = out[0];
  in.k = out[1];
  in.v = out[2];
  in.gate = config_.full_rank_gate ? out[3] : linear_one(out[3], g_b_proj_);
  in.g_raw = linear_one(out[4], f_b_proj_);
  in.beta_logit = out[5];
  return in;
}

at::Tensor KdaAttention::finish(const at::Tensor& o, const at::Tensor& gate) const {
  return linear_one(gated_norm(o, gate, o_norm_, config_.norm_eps), o_proj_);
}

binding::KdaArguments KdaAttention::operator_arguments() const {
  binding::KdaArguments args;
  args.a_log = a_log_;
  args.dt_bias = dt_bias_;
  args.lower_bound = config_.gate_lower_bound;
  args.raw_gate = true;
  args.beta_is_logit = true;
  args.beta_max = config_.allow_neg_eigval ? 2.0 : 1.0;
  args.qk_l2norm = true;
  args.chunk = config_.chunk;
  args.backend = backend_;
  return args;
}

at::Tensor KdaAttention::forward(const at::Tensor& x, const Sequences& sequences) const {
  const KDAConfig& c = config_;
  const std::int64_t tokens = x.size(0);
  const Inputs in = project(x);
  binding::KdaArguments args = operator_arguments();
  args.q =
      short_conv(in.q, q_conv_, sequences.cu_device).view({1, tokens, c.num_heads, c.head_k_dim});
  args.k =
      short_conv(in.k, k_conv_, sequences.cu_device).view({1, tokens, c.num_heads, c.head_k_dim});
  args.v =
      short_conv(in.v, v_conv_, sequences.cu_device).view({1, tokens, c.num_v_heads, c.head_v_dim});
  args.g = in.g_raw.view({1, tokens, c.num_v_heads, c.head_k_dim});
  args.beta = in.beta_logit.unsqueeze(0);
  args.cu_seqlens = sequences.cu_device;
  const at::Tensor o = std::get<0>(observed("chunk_kda", binding::chunk_kda, arg("args", args)));
  return finish(o.squeeze(0), in.gate);
}

at::Tensor KdaAttention::forward_cached(const at::Tensor& x, const Sequences& sequences,
                                        const LayerCache& cache) const {
  const KDAConfig& c = config_;
  const std::int64_t tokens = x.size(0);
  // A decode step is a batch of one-token rows, anything else one packed row.
  const std::int64_t rows = sequences.one_token_each ? tokens : 1;
  const std::int64_t length = sequences.one_token_each ? 1 : tokens;
  LayerState& state = *cache.state;
  const bool some_rows = cache.rows.defined();
  const Inputs in = project(x);
  at::Tensor window = some_rows ? state.conv_window.index_select(0, cache.rows) : state.conv_window;
  at::Tensor q_window = window.narrow(2, 0, c.k_width());
  at::Tensor k_window = window.narrow(2, c.k_width(), c.k_width());
  at::Tensor v_window = window.narrow(2, 2 * c.k_width(), c.v_width());
  binding::KdaArguments args = operator_arguments();
  args.q = short_conv_cached(in.q, q_conv_, sequences.cu_device, q_window)
               .view({rows, length, c.num_heads, c.head_k_dim});
  args.k = short_conv_cached(in.k, k_conv_, sequences.cu_device, k_window)
               .view({rows, length, c.num_heads, c.head_k_dim});
  args.v = short_conv_cached(in.v, v_conv_, sequences.cu_device, v_window)
               .view({rows, length, c.num_v_heads, c.head_v_dim});
  if (some_rows) state.conv_window.index_copy_(0, cache.rows, window);
  args.g = in.g_raw.view({rows, length, c.num_v_heads, c.head_k_dim});
  args.beta = in.beta_logit.contiguous().view({rows, length, c.num_v_heads});
  at::Tensor o;
  if (sequences.one_token_each) {
    binding::PoolArguments pool;
    pool.pool = state.state_kv;
    pool.slots = some_rows ? cache.rows : at::arange(rows, sequences.cu_device.options());
    const auto run = [](const binding::KdaArguments& a, const binding::PoolArguments& p) {
      return binding::recurrent_kda_pool(a, p);
    };
    o = observed_change("recurrent_kda_pool", "pool", run, arg("args", args), arg("pool", pool));
  } else {
    args.cu_seqlens = sequences.cu_device;
    args.initial_state = state.state_kv;
    args.output_final_state = true;
    auto [out, final_state] = observed("chunk_kda", binding::chunk_kda, arg("args", args));
    o = out;
    state.state_kv = *final_state;
  }
  return finish(o.view({tokens, c.num_v_heads, c.head_v_dim}), in.gate);
}

void KdaAttention::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  using Kind = ParameterKind;
  const KDAConfig& c = config_;
  const auto add = [&](const char* name, const at::Tensor& tensor, Kind kind,
                       std::int64_t blocks = 1) {
    parameters.push_back({prefix + name, tensor, kind, blocks});
  };
  add("q_proj.weight", q_proj_, Kind::kMatrix, c.num_heads);
  add("k_proj.weight", k_proj_, Kind::kMatrix, c.num_heads);
  add("v_proj.weight", v_proj_, Kind::kMatrix, c.num_v_heads);
  add("q_conv1d.weight", q_conv_, Kind::kConv);
  add("k_conv1d.weight", k_conv_, Kind::kConv);
  add("v_conv1d.weight", v_conv_, Kind::kConv);
  add("A_log", a_log_, Kind::kGate);
  add("dt_bias", dt_bias_, Kind::kGate);
  add("f_a_proj.weight", f_a_proj_, Kind::kMatrix);
  add("f_b_proj.weight", f_b_proj_, Kind::kMatrix, c.num_v_heads);
  add("b_proj.weight", b_proj_, Kind::kMatrix);
  if (c.full_rank_gate) {
    add("g_proj.weight", g_proj_, Kind::kMatrix, c.num_v_heads);
  } else {
    add("g_a_proj.weight", g_proj_, Kind::kMatrix);
    add("g_b_proj.weight", g_b_proj_, Kind::kMatrix, c.num_v_heads);
  }
  add("o_norm.weight", o_norm_, Kind::kNorm);
  add("o_proj.weight", o_proj_, Kind::kMatrix);
}

LayerState KdaAttention::new_state(std::int64_t num_rows) const {
  const KDAConfig& c = config_;
  const auto options = at::TensorOptions().dtype(a_log_.dtype()).device(a_log_.device());
  LayerState state;
  state.state_kv = at::zeros({num_rows, c.num_v_heads, c.head_k_dim, c.head_v_dim}, options);
  state.conv_window =
      at::zeros({num_rows, c.conv_size - 1, 2 * c.k_width() + c.v_width()}, options);
  return state;
}

}  // namespace kda::model
