/// Everything that a training run is told: one table of fields that the command line, the JSON
/// form, the printed configuration and the resume rules all expand.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "train/units.h"

namespace kda::train {

/// A number of things, written with K/M/G on the command line and plainly in JSON.
struct Count {
  std::int64_t value = 0;
  bool operator==(const Count&) const = default;
};

/// What to do with a step whose loss or gradient is not finite.
struct NonFinitePolicy {
  std::int64_t skips_allowed = 0;  ///< 0: stop at the first; N: leave out up to N steps of the run
  bool operator==(const NonFinitePolicy&) const = default;
};

struct TrainOptions {
  // Data.
  std::string data;
  std::string tokenizer;
  std::string cache;
  double heldout_share = 0.01;
  // Model.
  std::string preset = "toy";
  std::string model_config;
  std::vector<std::string> set;
  std::string init_from;
  // Budget: exactly one of the three is > 0.
  Count steps;
  Count max_tokens;
  Count epochs;
  std::int64_t batch = 4;
  std::int64_t seq_len = 256;
  std::int64_t grad_accum = 1;
  // Optimizer.
  double lr = 3e-4;
  Count warmup{-1};
  double lr_floor = 0.1;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip = 1.0;
  std::string dtype = "fp32";
  bool recompute = false;
  NonFinitePolicy on_nonfinite;
  // Run.
  std::string out;
  std::int64_t seed = 1;
  std::int64_t threads = 0;
  std::string backend = "auto";
  Count stop_after;
  Period log_every{10, PeriodUnit::kUpdates};
  Period eval_every{100, PeriodUnit::kUpdates};
  Count eval_tokens{16384};
  Period save_every{200, PeriodUnit::kUpdates};
  std::int64_t keep_last = 2;
  Period sample_every{200, PeriodUnit::kUpdates};
  std::vector<std::string> sample_prompt{"The", "如果"};
  std::int64_t sample_tokens = 48;
  // Debugging.
  bool overfit_batch = false;
  Count poison_step;
};

/// May a resumed run be given another value than the saved one?
enum class OnResume : std::uint8_t {
  kFixed,  ///< no: the rest of the run would not be the run that was saved
  kFree,   ///< yes: it does not touch the trajectory, or the user asks for a longer one
};

struct FieldInfo {
  const char* key;    ///< JSON key; the flag is "--" + key with '_' as '-'
  const char* group;  ///< heading in --help
  OnResume on_resume;
  const char* help;
};

/// Calls `visit(FieldInfo, field)` for every field, in the order of --help and of the JSON form.
template <typename Options, typename Visitor>
void for_each_field(Options& o, Visitor&& visit) {
  using enum OnResume;
  const char* group = "Data";
  visit(FieldInfo{"data", group, kFree,
                  "Folder of `kda data build` (pretrain*.txt, heldout*.txt) or `kda data pack`, or "
                  "one .txt (documents separated by empty lines) or .jsonl file"},
        o.data);
  // Free here: what must not change is the file's hash, which a resumed run compares itself.
  visit(FieldInfo{"tokenizer", group, kFree,
                  "Tokenizer file (`kda tokenizer train`); a packed folder brings its own"},
        o.tokenizer);
  visit(FieldInfo{"cache", group, kFree, "Folder for token shards; default: DATA/cache"}, o.cache);
  visit(FieldInfo{"heldout_share", group, kFixed,
                  "Share of the documents to hold out when the data has no held-out file"},
        o.heldout_share);

  group = "Model";
  visit(FieldInfo{"preset", group, kFixed, "Shape of the model: tiny or toy"}, o.preset);
  visit(FieldInfo{"model_config", group, kFixed, "Model config.json to use in place of a preset"},
        o.model_config);
  visit(FieldInfo{"set", group, kFixed,
                  "Change one field of the model config, e.g. --set num_hidden_layers=6 or "
                  "--set linear_attn_config.chunk_size=64; repeatable"},
        o.set);
  visit(FieldInfo{"init_from", group, kFixed,
                  "Start from the weights of a checkpoint, with a new optimizer and schedule"},
        o.init_from);

  group = "Budget";
  visit(FieldInfo{"steps", group, kFree, "Optimizer steps of the whole run, e.g. 800 or 2k"},
        o.steps);
  visit(FieldInfo{"max_tokens", group, kFree,
                  "Training tokens of the whole run, e.g. 8.2M (tokens = batch x seq-len x "
                  "grad-accum x steps)"},
        o.max_tokens);
  visit(FieldInfo{"epochs", group, kFree, "Passes over the training data"}, o.epochs);
  visit(FieldInfo{"batch", group, kFixed, "Rows per micro-batch"}, o.batch);
  visit(FieldInfo{"seq_len", group, kFixed, "Tokens per row"}, o.seq_len);
  visit(FieldInfo{"grad_accum", group, kFixed, "Micro-batches per optimizer step"}, o.grad_accum);

  group = "Optimizer";
  visit(FieldInfo{"lr", group, kFixed, "Peak learning rate"}, o.lr);
  visit(FieldInfo{"warmup", group, kFixed,
                  "Steps of linear warm-up; default: 64, at most a tenth of the run"},
        o.warmup);
  visit(FieldInfo{"lr_floor", group, kFixed, "Last learning rate as a share of the peak"},
        o.lr_floor);
  visit(FieldInfo{"weight_decay", group, kFixed,
                  "AdamW decay of matrices and embeddings; norms, convolutions, gates have none"},
        o.weight_decay);
  visit(FieldInfo{"beta1", group, kFixed, "AdamW beta1"}, o.beta1);
  visit(FieldInfo{"beta2", group, kFixed, "AdamW beta2"}, o.beta2);
  visit(FieldInfo{"eps", group, kFixed, "AdamW epsilon"}, o.eps);
  visit(FieldInfo{"clip", group, kFixed, "Largest global gradient norm; 0 = no clipping"}, o.clip);
  visit(FieldInfo{"dtype", group, kFixed,
                  "fp32 or bf16 activations; weights and optimizer are fp32 always"},
        o.dtype);
  visit(FieldInfo{"recompute", group, kFree,
                  "Keep only block inputs for the backward pass: less memory, more time"},
        o.recompute);
  visit(FieldInfo{"on_nonfinite", group, kFree,
                  "stop, or skip:N to leave out up to N steps whose loss or gradient is NaN or "
                  "infinite"},
        o.on_nonfinite);

  group = "Run";
  visit(FieldInfo{"out", group, kFree, "Run folder: checkpoints, metrics.jsonl, loss.svg"}, o.out);
  visit(FieldInfo{"seed", group, kFixed, "Seed of the weights and of the order of the data"},
        o.seed);
  visit(FieldInfo{"threads", group, kFree, "CPU threads; 0 = OMP_NUM_THREADS, else all cores"},
        o.threads);
  visit(FieldInfo{"backend", group, kFree, "Backend of the KDA operator: auto, cpu or ref"},
        o.backend);
  visit(FieldInfo{"stop_after", group, kFree,
                  "Save and leave after this step (exit code 0); --resume continues"},
        o.stop_after);
  visit(FieldInfo{"log_every", group, kFree,
                  "Console line every 10u (updates), 1Mt (tokens), 1e (epochs) or off"},
        o.log_every);
  visit(FieldInfo{"eval_every", group, kFree, "Held-out loss every ..."}, o.eval_every);
  visit(FieldInfo{"eval_tokens", group, kFree, "Held-out tokens per evaluation; 0 = all"},
        o.eval_tokens);
  visit(FieldInfo{"save_every", group, kFree, "Checkpoint every ..."}, o.save_every);
  visit(FieldInfo{"keep_last", group, kFree, "Checkpoints to keep beside the best one"},
        o.keep_last);
  visit(FieldInfo{"sample_every", group, kFree, "Print text sampled from the model every ..."},
        o.sample_every);
  visit(FieldInfo{"sample_prompt", group, kFree, "Prompt of those samples; repeatable"},
        o.sample_prompt);
  visit(FieldInfo{"sample_tokens", group, kFree, "Tokens per sample"}, o.sample_tokens);

  group = "Debugging";
  visit(FieldInfo{"overfit_batch", group, kFixed,
                  "Train on the first batch only: the loss must go to zero"},
        o.overfit_batch);
  visit(FieldInfo{"poison_step", group, kFree,
                  "Put a NaN into the gradient of the middle layer at this step, to rehearse "
                  "--on-nonfinite"},
        o.poison_step);
}

/// "--grad-accum" for "grad_accum".
std::string flag_of(const std::string& key);

// Text of one value, as the command line takes it and the printed configuration shows it. Parsing
// throws kInvalidArgument naming `flag`.
std::string to_text(const std::string& value);
std::string to_text(std::int64_t value);
std::string to_text(double value);
std::string to_text(bool value);
std::string to_text(const Count& value);
std::string to_text(const Period& value);
std::string to_text(const NonFinitePolicy& value);
std::string to_text(const std::vector<std::string>& value);
void parse_text(const std::string& text, const std::string& flag, std::string& value);
void parse_text(const std::string& text, const std::string& flag, std::int64_t& value);
void parse_text(const std::string& text, const std::string& flag, double& value);
void parse_text(const std::string& text, const std::string& flag, bool& value);
void parse_text(const std::string& text, const std::string& flag, Count& value);
void parse_text(const std::string& text, const std::string& flag, Period& value);
void parse_text(const std::string& text, const std::string& flag, NonFinitePolicy& value);

/// Checks every value and every combination that needs no file. Throws kInvalidArgument (exit 2)
/// or, for fp16, kUnsupported (exit 3) with the reason.
void check_options(const TrainOptions& options);

/// JSON object text, one key per field, two-space indent. `options_from_json` reads it back to
/// equal options; an unknown key (with the nearest known one) or a wrong type throws
/// kInvalidArgument.
std::string options_to_json(const TrainOptions& options);
TrainOptions options_from_json(const std::string& text, const std::string& source);

/// Options of a resumed run: `saved`, overridden by the fields of `given` that the user named.
/// Throws kInvalidArgument with both values when a fixed field differs.
TrainOptions merge_for_resume(const TrainOptions& saved, const TrainOptions& given,
                              const std::set<std::string>& given_keys);

/// The configuration as aligned "key value" lines, grouped: what a run prints at its start.
std::string describe_options(const TrainOptions& options);

}  // namespace kda::train
