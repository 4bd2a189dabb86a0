#include "inspect/session.h"

#include <ATen/ops/argmax.h>

#include <algorithm>
#include <string>

#include "inspect/backward.h"
#include "inspect/recorder.h"
#include "kda/error.h"
#include "model/batch.h"
#include "model/tensors.h"

namespace kda::inspect {
namespace {

void check_options(const std::vector<std::int64_t>& ids, const TraceOptions& options) {
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "ids: expected at least one, got none");
  if (options.decode < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "decode: expected >= 0, got " + std::to_string(options.decode));
  }
  if (!options.backward) return;
  if (options.decode > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "backward: not with decode, whose steps have no gradient");
  }
  if (ids.size() < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                "backward: expected at least two tokens, got one: nothing follows it");
  }
}

void trace_decoding(const model::CausalLM& model, std::int64_t steps, Recorder& recorder,
                    Trace& out) {
  model::DecodeState state = model.new_state(1);
  const model::PackedIds prompt = model::pack({out.ids});
  const auto length = static_cast<std::int64_t>(out.ids.size());
  recorder.begin_phase("prefill", 0, length);
  recorder.name_input(prompt.ids);
  out.logits = model.prefill(prompt, state);
  recorder.end_phase();
  for (std::int64_t step = 0; step < steps; ++step) {
    const at::Tensor next = at::argmax(out.logits, 1).to(at::kCPU);
    out.ids.push_back(next.item<std::int64_t>());
    recorder.begin_phase("decode", length + step, 1);
    recorder.name_input(next);
    out.logits = model.step(next, state);
    recorder.end_phase();
  }
}

void trace_training(const model::CausalLM& model, Recorder& recorder, Trace& out) {
  const std::vector<model::Parameter> parameters = model.parameters();
  for (const model::Parameter& parameter : parameters) {
    if (!parameter.tensor.grad().defined()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "model: expected no gradients, " + parameter.name + " has one");
  }
  const std::vector<std::int64_t> inputs(out.ids.begin(), out.ids.end() - 1);
  const at::Tensor targets = model::index_tensor({out.ids.begin() + 1, out.ids.end()});
  const model::PackedIds packed = model::pack({inputs});
  model::ForwardOptions forward;
  forward.count_routing = false;
  recorder.begin_phase("forward", 0, static_cast<std::int64_t>(inputs.size()));
  recorder.name_input(packed.ids);
  recorder.name_input(targets);
  out.loss = model.loss(packed, targets, forward).loss_sum;
  recorder.end_phase();
  recorder.name_result("loss", out.loss);
  recorder.begin_phase("backward", 0, 0);
  record_backward(recorder, out.loss);
  recorder.end_phase();
  for (const model::Parameter& parameter : parameters) {
    at::Tensor tensor = parameter.tensor;
    out.gradients.push_back(tensor.grad());
    tensor.mutable_grad().reset();
  }
}

}  // namespace

Trace trace_model(const model::CausalLM& model, const std::vector<std::int64_t>& ids,
                  const TraceOptions& options) {
  check_options(ids, options);
  Recorder recorder(options.statistics);
  for (const model::Parameter& parameter : model.parameters())
    recorder.name_parameter(parameter.name, parameter.tensor);
  for (const model::Parameter& buffer : model.buffers())
    recorder.name_parameter(buffer.name, buffer.tensor);
  Trace out;
  out.ids = ids;
  if (options.backward) {
    trace_training(model, recorder, out);
  } else if (options.decode > 0) {
    trace_decoding(model, options.decode, recorder, out);
  } else {
    const model::PackedIds packed = model::pack({ids});
    recorder.begin_phase("forward", 0, static_cast<std::int64_t>(ids.size()));
    recorder.name_input(packed.ids);
    out.logits = model.logits(packed);
    recorder.end_phase();
  }
  if (out.logits.defined()) recorder.name_result("logits", out.logits);
  out.graph = recorder.finish();
  return out;
}

std::string module_kind(const std::string& path, const model::KDAConfig& config) {
  const std::string name = path.substr(path.rfind('.') + 1);
  if (path == "model") return "model";
  if (!name.empty() &&
      std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return "layer";
  }
  if (name == "self_attn") {
    constexpr std::string_view kLayers = "model.layers.";
    return config.is_mla(std::stoll(path.substr(kLayers.size()))) ? "mla" : "kda";
  }
  if (name == "embed_tokens") return "embedding";
  if (name == "lm_head") return "head";
  if (name == "mlp" || name == "shared_experts") return "mlp";
  if (name == "block_sparse_moe") return "moe";
  if (name.ends_with("attn_res") || name == "self_attention_res" || name == "mlp_res") {
    return "attn_res";
  }
  if (name.ends_with("norm")) return "norm";
  return "part";
}

}  // namespace kda::inspect
