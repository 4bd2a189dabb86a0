#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "io/atomic_file.h"
#include "io/config_reader.h"
#include "io/escape.h"
#include "io/json.h"
#include "kda/error.h"

namespace kda::model {
namespace {

constexpr const char* kModelType = "kda";
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& given) {
  throw Error(ErrorCode::kInvalidArgument,
              "config: " + field + ": expected " + expected + ", got " + given);
}

void check_range(const char* field, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return;
  refuse(field, "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]",
         std::to_string(value));
}

io::Json id_or_null(std::int64_t id) { return id < 0 ? io::Json(nullptr) : io::Json(id); }

void read_id(io::ConfigReader& reader, const char* key, std::int64_t& id) {
  const io::Json* value = reader.raw(key);
  if (value == nullptr || value->is_null()) return;
  id = reader.require_int(key, 0);
}

}  // namespace

// Names the keys of the JSON form, which is what users write.
void KDAConfig::validate() const {
  check_range("vocab_size", vocab_size, 2, (std::int64_t{1} << 31) - 1);
  check_range("hidden_size", hidden_size, 1, kMaxWidth);
  check_range("num_hidden_layers", num_layers, 1, 4096);
  check_range("intermediate_size", intermediate_size, 1, kMaxWidth);
  check_range("linear_attn_config.num_heads", num_heads, 1, 4096);
  check_range("linear_attn_config.num_v_heads", num_v_heads, 1, 4096);
  if (num_v_heads % num_heads != 0) {
    refuse("linear_attn_config.num_v_heads", "a multiple of num_heads " + std::to_string(num_heads),
           std::to_string(num_v_heads));
  }
  check_range("linear_attn_config.head_k_dim", head_k_dim, 1, 256);
  check_range("linear_attn_config.head_v_dim", head_v_dim, 1, 256);
  check_range("linear_attn_config.short_conv_kernel_size", conv_size, 2, 4);
  if (gate_lower_bound && !(*gate_lower_bound >= -5.0 && *gate_lower_bound < 0.0)) {
    refuse("linear_attn_config.gate_lower_bound",
           "a number in [-5, 0), or null for the standard gate", std::to_string(*gate_lower_bound));
  }
  check_range("linear_attn_config.gate_low_rank", gate_low_rank, 1, kMaxWidth);
  if (chunk != 16 && chunk != 32 && chunk != 64 && chunk != 128) {
    refuse("linear_attn_config.chunk_size", "16, 32, 64 or 128", std::to_string(chunk));
  }
  if (!(norm_eps > 0.0 && norm_eps < 1.0)) {
    refuse("rms_norm_eps", "a number in (0, 1)", std::to_string(norm_eps));
  }
  if (!(initializer_range > 0.0 && initializer_range <= 10.0)) {
    refuse("initializer_range", "a number in (0, 10]", std::to_string(initializer_range));
  }
  check_range("bos_token_id", bos_id, -1, vocab_size - 1);
  check_range("eos_token_id", eos_id, -1, vocab_size - 1);
  check_range("pad_token_id", pad_id, -1, vocab_size - 1);
  if (pad_id >= 0 && pad_id == eos_id) {
    refuse("pad_token_id",
           "an id other than eos_token_id (a model that never learns EOS never stops), or null",
           std::to_string(pad_id));
  }
  check_range("max_position_embeddings", max_seq_len, 1, std::int64_t{1} << 40);
}

std::string KDAConfig::to_json() const {
  io::Json attention;
  attention["num_heads"] = num_heads;
  attention["num_v_heads"] = num_v_heads;
  attention["head_k_dim"] = head_k_dim;
  attention["head_v_dim"] = head_v_dim;
  attention["short_conv_kernel_size"] = conv_size;
  attention["gate_lower_bound"] =
      gate_lower_bound ? io::Json(*gate_lower_bound) : io::Json(nullptr);
  attention["use_full_rank_gate"] = full_rank_gate;
  attention["gate_low_rank"] = gate_low_rank;
  attention["allow_neg_eigval"] = allow_neg_eigval;
  attention["chunk_size"] = chunk;
  io::Json top;
  top["architectures"] = {"KDAForCausalLM"};
  top["model_type"] = kModelType;
  top["vocab_size"] = vocab_size;
  top["hidden_size"] = hidden_size;
  top["num_hidden_layers"] = num_layers;
  top["intermediate_size"] = intermediate_size;
  top["linear_attn_config"] = attention;
  top["rms_norm_eps"] = norm_eps;
  top["initializer_range"] = initializer_range;
  top["tie_word_embeddings"] = tie_embeddings;
  top["bos_token_id"] = id_or_null(bos_id);
  top["eos_token_id"] = id_or_null(eos_id);
  top["pad_token_id"] = id_or_null(pad_id);
  top["max_position_embeddings"] = max_seq_len;
  return top.dump(2) + "\n";
}

KDAConfig KDAConfig::from_json(const std::string& text) {
  const io::Json json = io::parse_json(text, "config");
  io::ConfigReader top(json, "config");
  const std::string type = top.require_string("model_type");
  if (type != kModelType) {
    top.fail("model_type", "expected \"kda\", got \"" + type + "\"");
  }
  KDAConfig c;
  std::vector<std::string> architectures;
  top.read_strings("architectures", architectures);
  c.vocab_size = top.require_int("vocab_size");
  c.hidden_size = top.require_int("hidden_size");
  c.num_layers = top.require_int("num_hidden_layers");
  c.intermediate_size = top.require_int("intermediate_size");
  top.read_number("rms_norm_eps", c.norm_eps);
  top.read_number("initializer_range", c.initializer_range);
  c.tie_embeddings = top.require_bool("tie_word_embeddings");
  read_id(top, "bos_token_id", c.bos_id);
  read_id(top, "eos_token_id", c.eos_id);
  read_id(top, "pad_token_id", c.pad_id);
  top.read_int("max_position_embeddings", c.max_seq_len);

  io::ConfigReader attention = top.object("linear_attn_config");
  c.num_heads = attention.require_int("num_heads");
  c.num_v_heads = c.num_heads;
  attention.read_int("num_v_heads", c.num_v_heads);
  c.head_k_dim = attention.require_int("head_k_dim");
  c.head_v_dim = c.head_k_dim;
  attention.read_int("head_v_dim", c.head_v_dim);
  attention.read_int("short_conv_kernel_size", c.conv_size);
  // Required, like every key whose absence would mean another model.
  const io::Json* bound = attention.raw("gate_lower_bound");
  if (bound == nullptr) attention.fail("gate_lower_bound", "required: a number, or null");
  c.gate_lower_bound.reset();
  if (!bound->is_null()) c.gate_lower_bound = attention.require_number("gate_lower_bound");
  c.full_rank_gate = attention.require_bool("use_full_rank_gate");
  c.gate_low_rank = c.head_k_dim;
  attention.read_int("gate_low_rank", c.gate_low_rank);
  attention.read_bool("allow_neg_eigval", c.allow_neg_eigval);
  attention.read_int("chunk_size", c.chunk);
  attention.finish();
  top.finish();
  c.validate();
  return c;
}

KDAConfig KDAConfig::preset(const std::string& name) {
  KDAConfig c;
  if (name == "tiny") {
    c.vocab_size = 256;
    c.hidden_size = 64;
    c.num_layers = 2;
    c.intermediate_size = 128;
    c.num_heads = 2;
    c.num_v_heads = 4;
    c.head_k_dim = 16;
    c.head_v_dim = 16;
    c.gate_low_rank = 16;
    c.chunk = 32;
    c.max_seq_len = 256;
  } else if (name == "toy") {
    // Untied: the input embedding costs no products, so 8M parameters train at the speed of 6M.
    c.vocab_size = 8192;
    c.hidden_size = 256;
    c.num_layers = 4;
    c.intermediate_size = 768;
    c.num_heads = 4;
    c.num_v_heads = 4;
    c.head_k_dim = 64;
    c.head_v_dim = 64;
    c.gate_low_rank = 64;
    c.tie_embeddings = false;
    c.max_seq_len = 1024;
  } else {
    std::string known;
    for (const std::string& preset : preset_names())
      known += (known.empty() ? "" : ", ") + preset;
    throw Error(ErrorCode::kInvalidArgument,
                "preset: expected one of " + known + ", got \"" + name + "\"");
  }
  return c;
}

std::vector<std::string> KDAConfig::preset_names() { return {"tiny", "toy"}; }

KDAConfig load_config(const std::string& path) {
  const std::string text = io::read_file(path);
  try {
    return KDAConfig::from_json(text);
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, io::escaped(path) + ": " + error.what());
  }
}

void save_config(const KDAConfig& config, const std::string& path) {
  config.validate();
  io::write_file_atomic(path, config.to_json());
}

std::string model_type_of(const std::string& json_text) {
  const io::Json json = io::parse_json(json_text, "config");
  io::ConfigReader reader(json, "config");
  return reader.require_string("model_type");
}

}  // namespace kda::model
