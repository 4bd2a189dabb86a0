#include "train/run_model.h"

#include <algorithm>
#include <vector>

#include "io/config_reader.h"
#include "io/json.h"
#include "kda/error.h"
#include "train/named_errors.h"

namespace kda::train {
namespace {

[[noreturn]] void refuse_model(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// The field of a config that "a" or "a.b" names; throws with the nearest known name.
io::Json& field_of(io::Json& config, const std::string& path) {
  io::Json* at = &config;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (!at->is_object() || !at->contains(key)) {
      std::vector<std::string> known;
      for (const auto& item : config.items()) {
        known.push_back(item.key());
        if (!item.value().is_object()) continue;
        for (const auto& inner : item.value().items()) {
          known.push_back(item.key() + "." + inner.key());
        }
      }
      const std::string guess = io::nearest_word(path, known);
      refuse_model("--set: the model config has no field '" + path + "'" +
                   (guess.empty() ? std::string() : "; did you mean " + guess + "?"));
    }
    at = &(*at)[key];
    begin = end + 1;
  }
  return *at;
}

/// Applies "key=value" to the JSON form of a config, where the value is JSON or a bare word.
model::KDAConfig with_changes(const model::KDAConfig& base,
                              const std::vector<std::string>& changes) {
  if (changes.empty()) return base;
  io::Json json = io::parse_json(base.to_json(), "model config");
  for (const std::string& change : changes) {
    const std::size_t equals = change.find('=');
    if (equals == std::string::npos || equals == 0) {
      refuse_model("--set: expected key=value, got '" + change + "'");
    }
    io::Json& field = field_of(json, change.substr(0, equals));
    const std::string value = change.substr(equals + 1);
    try {
      field = io::parse_json(value, "--set");
    } catch (const Error&) {
      field = value;
    }
  }
  return model::KDAConfig::from_json(json.dump());
}

}  // namespace

CheckpointFolder starting_point(const TrainOptions& o) {
  return named(o.task == Task::kSft ? "--ckpt" : "--init-from",
               [&] { return resolve_checkpoint(o.init_from); });
}

bool takes_preset(const TrainOptions& o, const std::set<std::string>& given) {
  return o.task == Task::kPretrain && o.model_config.empty() &&
         (o.init_from.empty() || given.contains("preset"));
}

model::KDAConfig model_of(const TrainOptions& o, const std::set<std::string>& given,
                          const text::TokenizerInfo& tokenizer) {
  const bool pretrains = o.task == Task::kPretrain;  // fine-tuning keeps the checkpoint's model
  model::KDAConfig config;
  if (takes_preset(o, given)) {
    config = named("--preset", [&] { return model::KDAConfig::preset(o.preset); });
    config.vocab_size = tokenizer.vocab_size;
  } else if (pretrains && !o.model_config.empty()) {
    if (given.contains("preset"))
      refuse_model("--preset and --model-config exclude each other: give one");
    config = named("--model-config", [&] { return model::load_config(o.model_config); });
  } else {
    config = model::load_config((starting_point(o).path / "config.json").string());
  }
  if (pretrains) config = named("--set", [&] { return with_changes(config, o.set); });
  if (pretrains && !o.attnres.empty()) {
    for (const auto mode :
         {model::AttnResMode::kOff, model::AttnResMode::kBlock, model::AttnResMode::kFull}) {
      if (o.attnres == model::name_of(mode)) config.attn_res.mode = mode;
    }
    config.attn_res.block_size = o.attnres_block_size;
  }
  config.bos_id = tokenizer.bos_id;
  config.eos_id = tokenizer.eos_id;
  config.pad_id = tokenizer.pad_id;
  if (config.vocab_size < tokenizer.vocab_size) {
    refuse_model("vocab_size: the model has " + std::to_string(config.vocab_size) +
                 " entries, the tokenizer " + o.tokenizer + " needs " +
                 std::to_string(tokenizer.vocab_size));
  }
  config.validate();
  return config;
}

}  // namespace kda::train
