#include "model/causal_lm.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "kda/backend.h"
#include "kda/error.h"
#include "model/block.h"
#include "model/cross_entropy.h"
#include "model/init.h"
#include "model/linear.h"
#include "model/new_parameter.h"
#include "model/observe.h"
#include "model/rms_norm.h"
#include "model/tensors.h"

namespace kda::model {

namespace {

// The decode state of a call, and which of its rows the sequences are; undefined: all, in order.
struct Cache {
  DecodeState* state = nullptr;
  at::Tensor rows;
  std::span<const std::int64_t> host_rows;  // empty: all
  std::vector<std::int64_t> past;           // tokens before this call, by sequence

  LayerCache layer(std::size_t index) const {
    if (state == nullptr) return {};
    return {&state->layers()[index], rows, host_rows, past};
  }
};

}  // namespace

struct CausalLM::Impl {
  KDAConfig config;
  DType compute;
  c10::Device device;
  at::Tensor embedding;  // [vocab,d]
  at::Tensor head;       // [vocab,d]; the embedding itself when tied
  at::Tensor final_norm;
  std::optional<AttnResWeights> output_res;
  std::vector<Block> blocks;
  // One for each layer with experts, null for the others. Counting is no change of the model.
  mutable std::vector<std::unique_ptr<RoutingStatistics>> routing;

  Impl(const KDAConfig& config_in, const ModelOptions& options)
      : config(config_in), compute(options.compute), device(options.device) {
    const auto kind =
        at::TensorOptions().dtype(compute == DType::kF64 ? at::kDouble : at::kFloat).device(device);
    embedding = new_parameter({config.vocab_size, config.hidden_size}, kind);
    head = config.tie_embeddings ? embedding
                                 : new_parameter({config.vocab_size, config.hidden_size}, kind);
    final_norm = new_parameter({config.hidden_size}, kind);
    blocks.reserve(static_cast<std::size_t>(config.num_layers));
    const LayerOptions layer{compute, options.backend, kind};
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      blocks.emplace_back(config, i, layer);
      routing.push_back(blocks.back().moe() == nullptr
                            ? nullptr
                            : std::make_unique<RoutingStatistics>(options.balance));
    }
    if (config.attn_res.enabled()) {
      output_res = AttnResWeights::make(config.hidden_size, layer);
    }
  }

  std::vector<Parameter> parameters() const {
    std::vector<Parameter> all;
    all.push_back({"model.embed_tokens.weight", embedding, ParameterKind::kEmbedding});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].collect("model.layers." + std::to_string(i) + ".", all);
    }
    if (output_res) output_res->collect("model.output_attn_res", all);
    all.push_back({"model.norm.weight", final_norm, ParameterKind::kNorm});
    if (!config.tie_embeddings) all.push_back({"lm_head.weight", head, ParameterKind::kHead});
    return all;
  }

  std::vector<Parameter> buffers() const {
    std::vector<Parameter> all;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].collect_buffers("model.layers." + std::to_string(i) + ".", all);
    }
    return all;
  }

  // The normed output of the last block [tokens,d] in the activation dtype.
  at::Tensor hidden(const PackedIds& packed, const Sequences& sequences, const Cache& cache,
                    const ForwardOptions& options, bool count_routing = false) const {
    return in_module(
        "model", [&] { return hidden_inside(packed, sequences, cache, options, count_routing); });
  }

  at::Tensor hidden_inside(const PackedIds& packed, const Sequences& sequences, const Cache& cache,
                           const ForwardOptions& options, bool count_routing) const {
    const auto observe = [&](const std::string& name, const at::Tensor& value) {
      if (options.observer != nullptr) (*options.observer)(name, value);
    };
    Depth depth;
    depth.residual.base = in_module(
        "embed_tokens", [&] { return at::embedding(embedding, packed.ids.to(device).flatten()); });
    observe("embed", depth.residual.base);
    const bool recompute =
        options.recompute_blocks && c10::GradMode::is_enabled() && options.observer == nullptr;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::string name = "layers." + std::to_string(i);
      at::Tensor largest;
      BlockCall call;
      if (count_routing) call.statistics = routing[i].get();
      if (options.largest_logits != nullptr) call.largest_logits = &largest;
      if (recompute) {
        depth = blocks[i].forward_recomputed(depth, sequences, call);
      } else {
        const BlockObserver parts = [&](const char* part, const at::Tensor& value) {
          observe(name + "." + part, value);
        };
        if (options.observer != nullptr) call.observer = &parts;
        call.cache = cache.layer(i);
        depth = in_module("layers", static_cast<std::int64_t>(i),
                          [&] { return blocks[i].forward(depth, sequences, call); });
        if (options.observer != nullptr) observe(name, depth.residual.sum());
      }
      if (largest.defined()) {
        options.largest_logits->push_back({static_cast<std::int64_t>(i), largest});
      }
    }
    const at::Tensor out = final_normed(depth);
    observe("norm", out);
    return out;
  }

  at::Tensor final_normed(const Depth& depth) const {
    const auto normed = [&](const at::Tensor& h, const at::Tensor& delta) {
      return in_module("norm", [&] {
        return add_rms_norm(h, delta, final_norm, config.norm_eps, compute).normed;
      });
    };
    const Residual& last = depth.residual;
    if (!output_res) return normed(last.base, last.delta);
    std::vector<at::Tensor> sources = depth.sources;
    sources.push_back(last.base);
    const at::Tensor h = in_module("output_attn_res", [&] {
      return attn_res(sources, output_res->gain, output_res->query, config.norm_eps);
    });
    return normed(h, {});
  }

  // f32 products also in bf16 models: bf16 logits tie too often for a stable greedy choice.
  at::Tensor logits_of(const at::Tensor& hidden_rows) const {
    return in_module("lm_head", [&] {
      return observed("linear", product_forward, arg("x", hidden_rows.to(head.scalar_type())),
                      arg("weight", head));
    });
  }
};

namespace {

Sequences checked_sequences(const PackedIds& packed, const CausalLM& model) {
  check(packed, model.config().vocab_size);
  return {packed.boundaries(), model.device()};
}

void check_not_empty(const PackedIds& packed) {
  if (packed.num_tokens() > 0) return;
  throw Error(ErrorCode::kInvalidArgument, "ids: expected at least one token, got none");
}

void check_targets(const PackedIds& packed, const at::Tensor& targets) {
  if (!targets.defined() || targets.scalar_type() != at::kLong ||
      targets.numel() != packed.num_tokens() || !targets.is_cpu()) {
    throw Error(ErrorCode::kInvalidArgument,
                "targets: expected an i64 host tensor with one target per token (" +
                    std::to_string(packed.num_tokens()) + "), got " +
                    (targets.defined() ? std::string(c10::toString(targets.scalar_type())) +
                                             shape_text(targets) + " on " + targets.device().str()
                                       : std::string("nothing")));
  }
}

void check_rows(const DecodeState& state, std::int64_t rows, std::int64_t layers) {
  if (state.num_rows() != rows || static_cast<std::int64_t>(state.layers().size()) != layers) {
    throw Error(ErrorCode::kInvalidArgument,
                "state: expected " + std::to_string(rows) + " rows and " + std::to_string(layers) +
                    " layers, got " + std::to_string(state.num_rows()) + " and " +
                    std::to_string(state.layers().size()));
  }
}

}  // namespace

CausalLM::CausalLM(const KDAConfig& config, const ModelOptions& options) {
  config.validate();
  switch (options.compute) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF64:
      break;
    case DType::kF16:
      throw Error(ErrorCode::kUnsupported,
                  "compute: f16 is refused: KDA multiplies exponentials of summed decays, which "
                  "leave the range of f16 (65504) and training diverges; use bf16 or f32");
    default:
      throw Error(
          ErrorCode::kInvalidArgument,
          std::string("compute: expected f32, bf16 or f64, got ") + name_of(options.compute));
  }
  backend_from_name(options.backend);
  impl_ = std::make_unique<Impl>(config, options);
  for (const Parameter& parameter : impl_->parameters()) {
    initialise(parameter, config, options.seed);
  }
}

CausalLM::~CausalLM() = default;
CausalLM::CausalLM(CausalLM&&) noexcept = default;
CausalLM& CausalLM::operator=(CausalLM&&) noexcept = default;

const KDAConfig& CausalLM::config() const { return impl_->config; }
DType CausalLM::compute() const { return impl_->compute; }
c10::Device CausalLM::device() const { return impl_->device; }
std::vector<Parameter> CausalLM::parameters() const { return impl_->parameters(); }
std::vector<Parameter> CausalLM::buffers() const { return impl_->buffers(); }

void CausalLM::update_routing() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < impl_->blocks.size(); ++i) {
    if (impl_->routing[i]) impl_->routing[i]->update(impl_->blocks[i].moe()->selection_bias());
  }
}

void CausalLM::discard_routing() {
  for (const auto& statistics : impl_->routing) {
    if (statistics) statistics->reset();
  }
}

std::vector<RoutingLoad> CausalLM::routing_loads() const {
  std::vector<RoutingLoad> loads;
  for (std::size_t i = 0; i < impl_->routing.size(); ++i) {
    if (!impl_->routing[i] || !impl_->routing[i]->loads().defined()) continue;
    const at::Tensor counts = impl_->routing[i]->loads().to(at::kCPU, at::kDouble);
    const double mean = counts.mean().item<double>();
    if (mean == 0) continue;
    loads.push_back({static_cast<std::int64_t>(i), counts.max().item<double>() / mean,
                     counts.min().item<double>() / mean});
  }
  return loads;
}

std::int64_t CausalLM::num_parameters() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters())
    count += parameter.tensor.numel();
  return count;
}

LossOutput CausalLM::loss(const PackedIds& packed, const at::Tensor& targets,
                          const ForwardOptions& options) const {
  const Sequences sequences = checked_sequences(packed, *this);
  check_not_empty(packed);
  check_targets(packed, targets);
  const at::Tensor flat = targets.contiguous().flatten();
  const bool count_routing = options.count_routing && c10::GradMode::is_enabled();
  const at::Tensor hidden = impl_->hidden(packed, sequences, {}, options, count_routing);
  const at::Tensor sum =
      in_module("lm_head", [&] { return cross_entropy_sum(hidden, impl_->head, flat); });
  return {sum, count_targets(flat)};
}

at::Tensor CausalLM::token_losses(const PackedIds& packed, const at::Tensor& targets) const {
  const c10::NoGradGuard no_grad;
  const Sequences sequences = checked_sequences(packed, *this);
  check_not_empty(packed);
  check_targets(packed, targets);
  const at::Tensor hidden = impl_->hidden(packed, sequences, {}, {});
  return cross_entropy_each(hidden, impl_->head, targets.contiguous().flatten());
}

at::Tensor CausalLM::logits(const PackedIds& packed, const ForwardOptions& options) const {
  const c10::NoGradGuard no_grad;
  const Sequences sequences = checked_sequences(packed, *this);
  check_not_empty(packed);
  return impl_->logits_of(impl_->hidden(packed, sequences, {}, options));
}

DecodeState CausalLM::new_state(std::int64_t num_rows) const {
  if (num_rows < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "num_rows: expected >= 0, got " + std::to_string(num_rows));
  }
  std::vector<LayerState> layers;
  for (const Block& block : impl_->blocks)
    layers.push_back(block.new_state(num_rows));
  return {std::move(layers), num_rows};
}

at::Tensor CausalLM::prefill(const PackedIds& pieces, DecodeState& state,
                             const ForwardOptions& options) const {
  const c10::NoGradGuard no_grad;
  const Sequences sequences = checked_sequences(pieces, *this);
  check_rows(state, sequences.num_sequences, config().num_layers);
  at::Tensor logits = at::zeros({sequences.num_sequences, config().vocab_size},
                                impl_->head.options().requires_grad(false));
  if (sequences.num_tokens == 0) return logits;
  const at::Tensor hidden =
      impl_->hidden(pieces, sequences, {&state, {}, {}, state.lengths()}, options);
  const auto cu = host_span(sequences.cu_host);
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> last;
  for (std::int64_t n = 0; n < sequences.num_sequences; ++n) {
    const std::int64_t begin = cu[static_cast<std::size_t>(n)];
    const std::int64_t end = cu[static_cast<std::size_t>(n) + 1];
    state.advance(n, end - begin);
    if (end == begin) continue;
    rows.push_back(n);
    last.push_back(end - 1);
  }
  const at::Tensor row_logits =
      impl_->logits_of(hidden.index_select(0, index_tensor(last, impl_->device)));
  if (static_cast<std::int64_t>(rows.size()) == sequences.num_sequences) return row_logits;
  return logits.index_copy_(0, index_tensor(rows, impl_->device), row_logits);
}

at::Tensor CausalLM::step(const at::Tensor& ids, DecodeState& state) const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(state.num_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return step_rows(ids, rows, state);
}

at::Tensor CausalLM::step_rows(const at::Tensor& ids, const std::vector<std::int64_t>& rows,
                               DecodeState& state) const {
  const c10::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(rows.size());
  if (!ids.defined() || ids.dim() != 1 || ids.size(0) != count) {
    throw Error(ErrorCode::kInvalidArgument, "ids: expected [" + std::to_string(count) + "], got " +
                                                 (ids.defined() ? shape_text(ids) : "nothing"));
  }
  check_rows(state, state.num_rows(), config().num_layers);
  std::vector<bool> seen(static_cast<std::size_t>(state.num_rows()), false);
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= state.num_rows() || seen[static_cast<std::size_t>(row)]) {
      throw Error(ErrorCode::kInvalidArgument, "rows: expected different values in [0," +
                                                   std::to_string(state.num_rows()) + "), got " +
                                                   std::to_string(row));
    }
    seen[static_cast<std::size_t>(row)] = true;
  }
  const PackedIds tokens{ids.unsqueeze(1), {}};
  const Sequences sequences = checked_sequences(tokens, *this);
  if (count == 0) {
    return at::zeros({0, config().vocab_size}, impl_->head.options().requires_grad(false));
  }
  const bool all_in_order = count == state.num_rows() && std::is_sorted(rows.begin(), rows.end());
  const at::Tensor which = all_in_order ? at::Tensor() : index_tensor(rows, impl_->device);
  Cache cache{&state, which, {}, {}};
  for (const std::int64_t row : rows)
    cache.past.push_back(state.lengths()[static_cast<std::size_t>(row)]);
  if (!all_in_order) cache.host_rows = rows;
  const at::Tensor hidden = impl_->hidden(tokens, sequences, cache, {});
  for (const std::int64_t row : rows)
    state.advance(row, 1);
  return impl_->logits_of(hidden);
}

std::string CausalLM::first_nonfinite(const PackedIds& packed) const {
  std::string first;
  const ActivationObserver observer = [&](const std::string& name, const at::Tensor& value) {
    if (first.empty() && !at::isfinite(value).all().item<bool>()) first = name;
  };
  ForwardOptions options;
  options.observer = &observer;
  const at::Tensor out = logits(packed, options);
  if (first.empty() && !at::isfinite(out).all().item<bool>()) first = "logits";
  return first;
}

std::uint64_t CausalLM::fingerprint() const {
  std::uint64_t hash = 0x9E3779B97F4A7C15U;
  const auto mix = [&hash](std::uint64_t word) {
    hash = std::rotl((hash ^ word) * 0xD6E8FEB86659FD93U, 29);
  };
  const auto mix_bytes = [&](const void* data, std::size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + i, std::min(sizeof(word), bytes - i));
      mix(word);
    }
    mix(bytes);
  };
  const std::string text = config().to_json();
  mix_bytes(text.data(), text.size());
  std::vector<Parameter> all = parameters();
  const std::vector<Parameter> more = buffers();
  all.insert(all.end(), more.begin(), more.end());
  for (const Parameter& parameter : all) {
    const at::Tensor host = parameter.tensor.detach().to(at::kCPU).contiguous();
    mix_bytes(host.const_data_ptr(), host.nbytes());
  }
  return hash;
}

}  // namespace kda::model
