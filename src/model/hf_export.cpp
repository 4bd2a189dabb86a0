#include "model/hf_export.h"

#include <ATen/ops/zeros.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "io/safetensors_writer.h"
#include "kda/error.h"
#include "model/weight_file.h"
#include "model/weight_names.h"

namespace kda::model {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kALogMultiple = 128;  // K3 pads A_log with zeros to this
constexpr double kReleasedLatentEps = 1e-6;

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& given) {
  throw Error(ErrorCode::kUnsupported, "released formats cannot hold this model: " + field +
                                           ": expected " + expected + ", got " + given);
}

void expect_equal(const char* field, std::int64_t value, const char* what, std::int64_t wanted) {
  if (value != wanted) {
    refuse(field, std::string(what) + " " + std::to_string(wanted), std::to_string(value));
  }
}

void check_expressible(const KDAConfig& c) {
  expect_equal("num_v_heads", c.num_v_heads, "num_heads", c.num_heads);
  expect_equal("head_v_dim", c.head_v_dim, "head_k_dim", c.head_k_dim);
  expect_equal("gate_low_rank", c.gate_low_rank, "head_k_dim", c.head_k_dim);
  if (c.allow_neg_eigval) refuse("allow_neg_eigval", "false", "true");
  if (c.num_mla_layers() == 0) refuse("full_attn_layers", "at least one MLA layer", "none");
  expect_equal("mla.num_heads", c.mla.num_heads, "num_heads", c.num_heads);
  if (c.mla.latent_norm_eps != kReleasedLatentEps) {
    refuse("mla.latent_norm_eps", "1e-6", std::to_string(c.mla.latent_norm_eps));
  }
  if (c.attn_res.mode == AttnResMode::kFull) {
    refuse("attn_res.mode", "off or block", name_of(c.attn_res.mode));
  }
}

bool is_k3(const KDAConfig& c) {
  return c.gate_lower_bound.has_value() || c.full_rank_gate || c.mla.output_gate ||
         c.mla.q_lora_rank > 0 || c.activation.kind == ActivationKind::kSitu ||
         c.attn_res.enabled() ||
         (c.moe.enabled() &&
          (c.moe.latent_size > 0 || c.moe.latent_norm || !c.moe.weights_include_bias));
}

io::Json id_or_null(std::int64_t id) { return id < 0 ? io::Json(nullptr) : io::Json(id); }

io::Json linear_attention(const KDAConfig& c, bool k3) {
  io::Json kda = io::Json::array();
  io::Json full = io::Json::array();
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    (c.is_mla(i) ? full : kda).push_back(i + 1);
  io::Json json;
  json["kda_layers"] = kda;
  json["full_attn_layers"] = full;
  json["num_heads"] = c.num_heads;
  json["head_dim"] = c.head_k_dim;
  json["short_conv_kernel_size"] = c.conv_size;
  if (k3) {
    json["gate_lower_bound"] = c.gate_lower_bound ? io::Json(*c.gate_lower_bound) : io::Json();
    json["use_full_rank_gate"] = c.full_rank_gate;
  }
  return json;
}

void write_mla(const MlaConfig& mla, bool k3, io::Json& json) {
  json["mla_use_nope"] = true;
  json["q_lora_rank"] = mla.q_lora_rank > 0 ? io::Json(mla.q_lora_rank) : io::Json();
  json["kv_lora_rank"] = mla.kv_lora_rank;
  json["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  json["v_head_dim"] = mla.v_head_dim;
  if (k3) json["mla_use_output_gate"] = mla.output_gate;
}

void write_experts(const KDAConfig& c, bool k3, io::Json& json) {
  const MoeConfig& moe = c.moe;
  if (!moe.enabled()) return;
  json["num_experts"] = moe.num_experts;
  json["num_experts_per_token"] = moe.num_experts_per_token;
  json["num_shared_experts"] = moe.num_shared_experts;
  json["moe_intermediate_size"] = moe.intermediate_size;
  json["moe_renormalize"] = moe.renormalize;
  json["moe_router_activation_func"] = "sigmoid";
  json["routed_scaling_factor"] = moe.routed_scaling_factor;
  json["num_expert_group"] = moe.num_groups;
  json["topk_group"] = moe.topk_groups;
  json["topk_method"] = "noaux_tc";
  json["first_k_dense_replace"] = c.first_dense_layers;
  json["moe_layer_freq"] = 1;
  if (!k3) return;
  if (moe.weights_include_bias) refuse("moe.weights_include_bias", "false in the K3 form", "true");
  json["routed_expert_hidden_size"] = moe.latent_size > 0 ? io::Json(moe.latent_size) : io::Json();
  json["latent_moe_use_norm"] = moe.latent_norm;
}

io::Json language_model(const KDAConfig& c, bool k3) {
  io::Json json;
  json["model_type"] = "kimi_linear";
  json["architectures"] = {"KimiLinearForCausalLM"};
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.hidden_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_heads;
  json["num_key_value_heads"] = c.num_heads;
  json["intermediate_size"] = c.intermediate_size;
  json["hidden_act"] = name_of(c.activation.kind);
  if (c.activation.kind == ActivationKind::kSitu) {
    json["activation_situ_beta"] = c.activation.situ_beta;
    const double linear = c.activation.situ_linear_beta;
    json["activation_situ_linear_beta"] = linear > 0 ? io::Json(linear) : io::Json();
  }
  json["linear_attn_config"] = linear_attention(c, k3);
  write_mla(c.mla, k3, json);
  write_experts(c, k3, json);
  if (c.attn_res.enabled()) {
    json["attn_res_block_size"] = c.attn_res.layers_per_block(c.num_layers);
  }
  json["rms_norm_eps"] = c.norm_eps;
  json["initializer_range"] = c.initializer_range;
  json["tie_word_embeddings"] = c.tie_embeddings;
  json["num_nextn_predict_layers"] = 0;
  json["bos_token_id"] = id_or_null(c.bos_id);
  json["eos_token_id"] = id_or_null(c.eos_id);
  json["pad_token_id"] = id_or_null(c.pad_id);
  json[k3 ? "max_position_embeddings" : "model_max_length"] = c.max_seq_len;
  return json;
}

// One tensor of the exported files.
struct Exported {
  io::StSpec spec;
  at::Tensor values;
};

bool is_wide_in_releases(const Parameter& parameter) {
  return is_always_wide(parameter) || parameter.kind == ParameterKind::kConv ||
         parameter.name.ends_with(".o_norm.weight");
}

at::Tensor released_a_log(const at::Tensor& values, bool k3) {
  const std::int64_t heads = values.size(0);
  if (!k3) return values.view({1, 1, heads, 1});
  const std::int64_t padded = (heads + kALogMultiple - 1) / kALogMultiple * kALogMultiple;
  at::Tensor out = at::zeros({padded}, values.options());
  out.narrow(0, 0, heads).copy_(values);
  return out;
}

std::vector<Exported> released_tensors(const CausalLM& model, StoredType type, bool k3) {
  std::vector<Parameter> all = model.parameters();
  const std::vector<Parameter> buffers = model.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  std::vector<Exported> tensors;
  for (const Parameter& parameter : all) {
    const bool wide = type == StoredType::kF32 || is_wide_in_releases(parameter);
    for (const StoredPart& part : released_parts(parameter)) {
      const at::Tensor values =
          part.name.ends_with(".A_log") ? released_a_log(part.values, k3) : part.values;
      tensors.push_back({{(k3 ? std::string(kLanguagePrefix) : "") + part.name,
                          wide ? io::StDtype::kF32 : io::StDtype::kBF16, values.sizes().vec()},
                         values});
    }
  }
  return tensors;
}

std::int64_t bytes_of(const Exported& tensor) {
  return tensor.values.numel() * static_cast<std::int64_t>(io::size_of(tensor.spec.dtype));
}

// Where each file ends: tensors [ends[i-1], ends[i]) are file i.
std::vector<std::size_t> cut(const std::vector<Exported>& tensors, std::int64_t max_bytes) {
  std::vector<std::size_t> ends;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t more = bytes_of(tensors[i]);
    if (max_bytes > 0 && bytes > 0 && bytes + more > max_bytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  ends.push_back(tensors.size());
  return ends;
}

std::string shard_name(std::size_t index, std::size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text;
}

void write_file(const fs::path& path, const std::vector<Exported>& tensors, std::size_t begin,
                std::size_t end) {
  std::vector<io::StSpec> specs;
  for (std::size_t i = begin; i < end; ++i)
    specs.push_back(tensors[i].spec);
  io::SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (std::size_t i = begin; i < end; ++i)
    write_values(writer, tensors[i].spec, tensors[i].values);
  writer.commit();
}

}  // namespace

io::Json config_to_hf(const KDAConfig& config) {
  config.validate();
  check_expressible(config);
  const bool k3 = is_k3(config);
  io::Json text = language_model(config, k3);
  if (!k3) return text;
  io::Json top;
  top["model_type"] = "kimi_k3";
  top["text_config"] = std::move(text);
  return top;
}

std::vector<std::string> export_hf(const CausalLM& model, const std::string& folder,
                                   const HfExportOptions& options) {
  if (options.max_shard_bytes < 0) {
    throw Error(ErrorCode::kInvalidArgument, "max_shard_bytes: expected at least 0, got " +
                                                 std::to_string(options.max_shard_bytes));
  }
  const io::Json config = config_to_hf(model.config());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, "cannot create folder " + folder + ": " + error.message());
  }
  const std::vector<Exported> tensors =
      released_tensors(model, options.type, is_k3(model.config()));
  const std::vector<std::size_t> ends = cut(tensors, options.max_shard_bytes);
  std::vector<std::string> files;
  std::map<std::string, std::string> weight_map;
  std::int64_t total = 0;
  std::size_t begin = 0;
  for (std::size_t n = 0; n < ends.size(); ++n) {
    const std::string name =
        ends.size() == 1 ? std::string("model.safetensors") : shard_name(n, ends.size());
    write_file(fs::path(folder) / name, tensors, begin, ends[n]);
    files.push_back(name);
    for (std::size_t i = begin; i < ends[n]; ++i) {
      weight_map[tensors[i].spec.name] = name;
      total += bytes_of(tensors[i]);
    }
    begin = ends[n];
  }
  if (files.size() > 1) {
    io::Json index;
    index["metadata"]["total_size"] = total;
    index["weight_map"] = weight_map;
    io::write_json_file(fs::path(folder) / "model.safetensors.index.json", index);
    files.emplace_back("model.safetensors.index.json");
  }
  io::write_json_file(fs::path(folder) / "config.json", config);
  files.emplace_back("config.json");
  return files;
}

}  // namespace kda::model
