#include "train/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "io/config_reader.h"
#include "io/escape.h"
#include "io/json.h"
#include "io/number_text.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "train/device_name.h"

namespace kda::train {
namespace {

[[noreturn]] void refuse_option(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

io::Json json_of(const std::string& value) { return value; }
io::Json json_of(std::int64_t value) { return value; }
io::Json json_of(double value) { return value; }
io::Json json_of(bool value) { return value; }
io::Json json_of(const Count& value) { return value.value; }
io::Json json_of(Task value) { return name_of(value); }
io::Json json_of(const Period& value) { return to_string(value); }
io::Json json_of(const NonFinitePolicy& value) { return to_text(value); }
io::Json json_of(const std::vector<std::string>& value) { return value; }

void read(io::ConfigReader& r, const char* key, std::string& v) { r.read_string(key, v); }
void read(io::ConfigReader& r, const char* key, std::int64_t& v) { r.read_int(key, v); }
void read(io::ConfigReader& r, const char* key, double& v) { r.read_number(key, v); }
void read(io::ConfigReader& r, const char* key, bool& v) { r.read_bool(key, v); }
void read(io::ConfigReader& r, const char* key, Count& v) { r.read_int(key, v.value); }
void read(io::ConfigReader& r, const char* key, std::vector<std::string>& v) {
  r.read_strings(key, v);
}
template <typename Parsed>
void read(io::ConfigReader& r, const char* key, Parsed& value) {
  std::string text = to_text(value);
  r.read_string(key, text);
  parse_text(text, key, value);
}

void check_range(const char* key, double value, double low, double high, const char* expected) {
  if (!(value >= low && value <= high)) {
    refuse_option(flag_of(key) + ": expected " + expected + ", got " + to_text(value));
  }
}

}  // namespace

const char* name_of(Task task) { return task == Task::kSft ? "sft" : "train"; }

TrainOptions sft_defaults() {
  TrainOptions o;
  o.task = Task::kSft;
  o.lr = 1e-4;
  o.sample_every = {};
  return o;
}

std::string flag_of(const std::string& key) {
  std::string flag = "--" + key;
  for (char& c : flag) {
    if (c == '_') c = '-';
  }
  return flag;
}

std::string nearest_key(const std::string& key, Task task) {
  // {what others say, our key}
  static constexpr std::pair<const char*, const char*> kOtherNames[] = {
      {"learning_rate", "lr"},
      {"peak_lr", "lr"},
      {"min_lr", "lr_floor"},
      {"lr_scheduler", "schedule"},
      {"lr_schedule", "schedule"},
      {"warmup_steps", "warmup"},
      {"decay_steps", "decay"},
      {"batch_size", "batch"},
      {"micro_batch_size", "batch"},
      {"sequence_length", "seq_len"},
      {"max_seq_len", "seq_len"},
      {"context_length", "seq_len"},
      {"block_size", "seq_len"},
      {"gradient_accumulation_steps", "grad_accum"},
      {"max_steps", "steps"},
      {"num_steps", "steps"},
      {"iterations", "steps"},
      {"num_train_epochs", "epochs"},
      {"tokens", "max_tokens"},
      {"grad_clip", "clip"},
      {"max_grad_norm", "clip"},
      {"precision", "dtype"},
      {"output_dir", "out"},
      {"out_dir", "out"},
      {"dataset", "data"},
      {"train_file", "data"},
      {"checkpoint", "init_from"},
      {"gradient_checkpointing", "recompute"},
      {"activation_checkpointing", "recompute"},
      {"eval_interval", "eval_every"},
      {"log_interval", "log_every"},
      {"save_interval", "save_every"},
      {"weight_decay_rate", "weight_decay"},
      {"vocab", "tokenizer"},
  };
  std::vector<std::string> known;
  const TrainOptions fields;
  for_each_field(fields, [&](const FieldInfo& info, const auto&) {
    if (info.belongs_to(task)) known.emplace_back(info.key);
  });
  const std::size_t own = known.size();
  for (const auto& [name, ours] : kOtherNames) {
    if (std::find(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(own), ours) !=
        known.begin() + static_cast<std::ptrdiff_t>(own)) {
      known.emplace_back(name);
    }
  }
  std::string guess = io::nearest_word(key, known);
  for (const auto& [name, ours] : kOtherNames) {
    if (guess == name) return ours;
  }
  return guess;
}

std::string to_text(const std::string& value) { return value; }
std::string to_text(std::int64_t value) { return std::to_string(value); }
std::string to_text(double value) { return io::number_text(value); }
std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(const Count& value) { return std::to_string(value.value); }
std::string to_text(Task value) { return name_of(value); }
std::string to_text(const Period& value) { return to_string(value); }

std::string to_text(const NonFinitePolicy& value) {
  return value.skips_allowed == 0 ? "stop" : "skip:" + std::to_string(value.skips_allowed);
}

std::string to_text(const std::vector<std::string>& value) {
  std::string text;
  for (const std::string& item : value) {
    if (!text.empty()) text += " | ";
    text += item;
  }
  return text;
}

void parse_text(const std::string& text, const std::string&, std::string& value) { value = text; }

void parse_text(const std::string& text, const std::string& flag, std::int64_t& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) {
    refuse_option(flag + ": expected a whole number, got '" + text + "'");
  }
}

void parse_text(const std::string& text, const std::string& flag, double& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    refuse_option(flag + ": expected a finite number, got '" + text + "'");
  }
}

void parse_text(const std::string& text, const std::string& flag, bool& value) {
  if (text == "true" || text == "1" || text == "on") {
    value = true;
  } else if (text == "false" || text == "0" || text == "off") {
    value = false;
  } else {
    refuse_option(flag + ": expected true or false, got '" + text + "'");
  }
}

void parse_text(const std::string& text, const std::string& flag, Count& value) {
  value.value = parse_budget(text, value.unit, flag);
}

void parse_text(const std::string& text, const std::string& flag, Task& value) {
  if (text != name_of(Task::kPretrain) && text != name_of(Task::kSft)) {
    refuse_option(flag + ": expected train or sft, got '" + text + "'");
  }
  value = text == name_of(Task::kSft) ? Task::kSft : Task::kPretrain;
}

void parse_text(const std::string& text, const std::string& flag, Period& value) {
  value = parse_period(text, flag);
}

void parse_text(const std::string& text, const std::string& flag, NonFinitePolicy& value) {
  if (text == "stop") {
    value.skips_allowed = 0;
    return;
  }
  std::int64_t skips = 0;
  if (text.starts_with("skip:")) {
    const char* begin = text.data() + 5;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(begin, end, skips);
    if (status == std::errc{} && stop == end && skips > 0) {
      value.skips_allowed = skips;
      return;
    }
  }
  refuse_option(flag + ": expected stop or skip:N with N > 0, got '" + text + "'");
}

namespace {

void check_choice(const char* key, const std::string& value, const char* expected,
                  std::initializer_list<std::string_view> known) {
  for (const std::string_view word : known) {
    if (value == word) return;
  }
  refuse_option(flag_of(key) + ": expected " + expected + ", got " + io::escaped(value));
}

void check_choices(const TrainOptions& o) {
  if (o.dtype == "fp16") {
    throw Error(ErrorCode::kUnsupported,
                "--dtype: fp16 is not supported: products of decays and the recurrent state leave "
                "its range (65504); use bf16 or fp32");
  }
  check_choice("dtype", o.dtype, "fp32 or bf16", {"fp32", "bf16"});
  check_choice("backend", o.backend, "auto, cpu, ref or cuda", {"auto", "cpu", "ref", "cuda"});
  check_choice("optimizer", o.optimizer, "adamw or muon", {"adamw", "muon"});
  check_choice("schedule", o.schedule, "cosine or wsd", {"cosine", "wsd"});
  check_choice("attnres", o.attnres, "off, block or full", {"", "off", "block", "full"});
  check_choice("target_lang", o.target_lang, "en or zh", {"", "en", "zh"});
  check_device_name(o.device);
  if (o.src.empty() != o.ref.empty()) refuse_option("--src and --ref belong together: give both");
  if (!o.src.empty() && o.target_lang.empty()) {
    refuse_option("--target-lang: expected the language of --ref (en or zh), got nothing");
  }
}

}  // namespace

void check_options(const TrainOptions& o) {
  // config.json and the checkpoints hold the options, and JSON holds nothing but UTF-8.
  for_each_field(o, [](const FieldInfo& info, const auto& field) {
    const std::string text = to_text(field);
    if (io::find_invalid_utf8(text) != text.size()) {
      refuse_option(flag_of(info.key) + ": expected UTF-8, got " + io::escaped(text));
    }
  });
  check_choices(o);
  const int budgets = (o.steps.value > 0) + (o.max_tokens.value > 0) + (o.epochs.value > 0);
  if (budgets > 1) refuse_option("--steps, --max-tokens and --epochs exclude each other: give one");
  if (budgets == 0) refuse_option("no budget: give one of --steps, --max-tokens, --epochs (> 0)");
  if (o.data.empty()) refuse_option("--data: expected a folder or text file, got nothing");
  if (o.task == Task::kSft && o.init_from.empty()) {
    refuse_option("--init-from (--ckpt): expected the checkpoint to start from, got nothing");
  }
  if (o.tokenizer.empty()) refuse_option("--tokenizer: expected a tokenizer file, got nothing");
  if (o.out.empty()) refuse_option("--out: expected a folder for the run, got nothing");
  const auto count = [](const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
    check_range(
        key, static_cast<double>(value), static_cast<double>(low), static_cast<double>(high),
        ("a whole number from " + std::to_string(low) + " to " + std::to_string(high)).c_str());
  };
  count("batch", o.batch, 1, 1 << 20);
  count("seq_len", o.seq_len, 1, 1 << 24);
  count("grad_accum", o.grad_accum, 1, 1 << 20);
  count("threads", o.threads, 0, 4096);
  count("keep_last", o.keep_last, 1, 1 << 20);
  count("attnres_block_size", o.attnres_block_size, 0, 1 << 20);
  count("mt_pairs", o.mt_pairs, 0, 1 << 20);
  count("mt_tokens", o.mt_tokens, 1, 1 << 16);
  count("profile", o.profile, 0, 1 << 20);
  count("sample_tokens", o.sample_tokens, 0, 1 << 20);
  count("seed", o.seed, 0, std::int64_t{1} << 53);
  count("stop_after", o.stop_after.value, 0, std::int64_t{1} << 53);
  check_range("heldout_share", o.heldout_share, 0, 0.5, "a share in [0, 0.5]");
  check_range("lr", o.lr, 1e-300, 1e6, "a number > 0");
  check_range("lr_floor", o.lr_floor, 0, 1, "a ratio in [0, 1]");
  check_range("weight_decay", o.weight_decay, 0, 1e6, "a number >= 0");
  check_range("beta1", o.beta1, 0, 1 - 1e-12, "a number in [0, 1)");
  check_range("beta2", o.beta2, 0, 1 - 1e-12, "a number in [0, 1)");
  check_range("eps", o.eps, 1e-300, 1, "a number in (0, 1]");
  check_range("momentum", o.momentum, 0, 1 - 1e-12, "a number in [0, 1)");
  check_range("qk_clip", o.qk_clip, 0, 1e12, "a number >= 0");
  check_range("clip", o.clip, 0, 1e12, "a number >= 0");
}

std::string options_to_json(const TrainOptions& options) {
  io::Json json = io::Json::object();
  for_each_field(
      options, [&](const FieldInfo& info, const auto& field) { json[info.key] = json_of(field); });
  return json.dump(2);
}

TrainOptions options_from_json(const std::string& text, const std::string& source) {
  const io::Json json = io::parse_json(text, source);
  TrainOptions options;
  io::ConfigReader reader(json, "");
  try {
    std::set<std::string> known;
    for_each_field(options, [&](const FieldInfo& info, auto& field) {
      known.insert(info.key);
      read(reader, info.key, field);
    });
    for (const auto& item : json.items()) {
      if (known.contains(item.key())) continue;
      const std::string guess = nearest_key(item.key(), options.task);
      refuse_option("unknown key " + io::escaped(item.key(), 80) +
                    (guess.empty()
                         ? "; `kda " + std::string(name_of(options.task)) + " --help` lists them"
                         : "; did you mean " + io::escaped(guess) + "?"));
    }
  } catch (const Error& error) {
    throw Error(error.code(), source + ": " + error.what());
  }
  return options;
}

TrainOptions merge_for_resume(const TrainOptions& saved, const TrainOptions& given,
                              const std::set<std::string>& given_keys) {
  TrainOptions merged = saved;
  std::vector<std::string> wanted;
  for_each_field(given,
                 [&](const FieldInfo&, const auto& field) { wanted.push_back(to_text(field)); });
  // One budget replaces another: what counts is that the user asked for a length.
  if (given_keys.contains("steps") || given_keys.contains("max_tokens") ||
      given_keys.contains("epochs")) {
    merged.steps = given.steps;
    merged.max_tokens = given.max_tokens;
    merged.epochs = given.epochs;
  }
  if (!given_keys.contains("stop_after")) merged.stop_after = {};
  if (!given_keys.contains("poison_step")) merged.poison_step = {};
  std::size_t i = 0;
  for_each_field(merged, [&](const FieldInfo& info, auto& field) {
    const std::string& asked = wanted[i++];
    if (!given_keys.contains(info.key)) return;
    using Field = std::remove_reference_t<decltype(field)>;
    const std::string was = to_text(field);
    if (asked == was) return;
    if (info.on_resume == OnResume::kFixed) {
      refuse_option(
          flag_of(info.key) + ": the run was started with '" + was + "', got '" + asked +
          "'; a resumed run keeps it (drop the flag, or start a new run with --init-from)");
    }
    if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      if (std::string_view(info.key) == "sample_prompt") field = given.sample_prompt;
    } else {
      parse_text(asked, flag_of(info.key), field);
    }
  });
  return merged;
}

void apply_preset_defaults(TrainOptions& o, const std::set<std::string>& given_keys) {
  if (o.task != Task::kPretrain || (o.preset != "k3-0.5b" && o.preset != "0.5b")) return;
  const auto set = [&](const char* key, auto& field, auto value) {
    if (!given_keys.contains(key)) field = value;
  };
  set("batch", o.batch, 2);
  set("seq_len", o.seq_len, 2048);
  set("grad_accum", o.grad_accum, 8);
  set("dtype", o.dtype, "bf16");
  set("recompute", o.recompute, true);
  constexpr std::int64_t kSmokeSteps = 250;  // 8.2M tokens: shows that it runs, not that it learns
  if (o.steps.value == 0 && o.max_tokens.value == 0 && o.epochs.value == 0) {
    o.steps.value = kSmokeSteps;
  }
}

std::string describe_options(const TrainOptions& options,
                             const std::map<std::string, std::string>& effective) {
  std::string text;
  std::string group;
  for_each_field(options, [&](const FieldInfo& info, const auto& field) {
    if (!info.belongs_to(options.task)) return;
    const auto known = effective.find(info.key);
    const std::string value = known != effective.end() ? known->second : to_text(field);
    if (group != info.group) {
      group = info.group;
      text += group + "\n";
    }
    std::string line = std::string("  ") + info.key;
    line.resize(std::max<std::size_t>(21, line.size() + 1), ' ');
    text += line + (value.empty() ? "-" : value) + "\n";
  });
  return text;
}

}  // namespace kda::train
