/// Everything that a training run is told: one table of fields that the command line, the JSON
/// form, the printed configuration and the resume rules all expand.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "train/units.h"

namespace kda::train {

/// A number of things, written with K/M/G on the command line and plainly in JSON. `unit` is the
/// letter that may follow it: u (updates), t (tokens), e (epochs), or 0 for none.
struct Count {
  std::int64_t value = 0;
  char unit = 0;
  bool operator==(const Count& other) const { return value == other.value; }
};

/// Which verb a run belongs to.
enum class Task : std::uint8_t {
  kPretrain,  ///< `kda train`: every token of a text is learnt
  kSft,       ///< `kda sft`: answers are learnt, prompts are not
};

const char* name_of(Task task);  ///< "train", "sft"

/// What to do with a step whose loss or gradient is not finite.
struct NonFinitePolicy {
  std::int64_t skips_allowed = 0;  ///< 0: stop at the first; N: leave out up to N steps of the run
  bool operator==(const NonFinitePolicy&) const = default;
};

struct TrainOptions {
  Task task = Task::kPretrain;  ///< the verb; no flag
  // Data.
  std::string data;
  std::string tokenizer;
  std::string cache;
  double heldout_share = 0.01;
  Count limit;
  // Model.
  std::string preset = "toy";
  std::string model_config;
  std::vector<std::string> set;
  std::string attnres;  ///< "": what the preset says
  std::int64_t attnres_block_size = 0;
  std::string init_from;
  // Budget: exactly one of the three is > 0.
  Count steps{0, 'u'};
  Count max_tokens{0, 't'};
  Count epochs{0, 'e'};
  std::int64_t batch = 4;
  std::int64_t seq_len = 256;
  std::int64_t grad_accum = 1;
  // Optimizer.
  std::string optimizer = "adamw";
  double lr = 3e-4;
  Count warmup{-1, 'u'};
  std::string schedule = "cosine";
  Count decay{-1, 'u'};
  double lr_floor = 0.1;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;
  double qk_clip = 100;
  double clip = 1.0;
  std::string dtype = "fp32";
  bool recompute = false;
  NonFinitePolicy on_nonfinite;
  // Run.
  std::string out;
  std::int64_t seed = 1;
  std::int64_t threads = 0;
  std::string device = "auto";
  std::string backend = "auto";
  Count stop_after{0, 'u'};
  Period log_every{10, PeriodUnit::kUpdates};
  Period eval_every{100, PeriodUnit::kUpdates};
  Count eval_tokens{16384};
  Period save_every{200, PeriodUnit::kUpdates};
  std::int64_t keep_last = 2;
  Period sample_every{200, PeriodUnit::kUpdates};
  std::vector<std::string> sample_prompt{"The", "如果"};
  std::int64_t sample_tokens = 48;
  // Translation during fine-tuning.
  std::string src;
  std::string ref;
  std::string target_lang;
  std::int64_t mt_pairs = 32;
  std::int64_t mt_tokens = 96;
  // Debugging.
  bool overfit_batch = false;
  Count poison_step{0, 'u'};
  std::int64_t profile = 0;
};

/// Defaults of `kda sft`: a smaller learning rate, a pass over the data, no samples.
TrainOptions sft_defaults();

/// May a resumed run be given another value than the saved one?
enum class OnResume : std::uint8_t {
  kFixed,  ///< no: the rest of the run would not be the run that was saved
  kFree,   ///< yes: it does not touch the trajectory, or the user asks for a longer one
};

/// Which verbs take a field as a flag. All fields are in the JSON form of both.
enum class Verbs : std::uint8_t { kBoth, kTrainOnly, kSftOnly, kNone };

struct FieldInfo {
  const char* key;    ///< JSON key; the flag is "--" + key with '_' as '-'
  const char* group;  ///< heading in --help
  OnResume on_resume;
  const char* help;
  Verbs verbs = Verbs::kBoth;

  bool belongs_to(Task task) const {
    return verbs == Verbs::kBoth ||
           verbs == (task == Task::kPretrain ? Verbs::kTrainOnly : Verbs::kSftOnly);
  }
};

/// Calls `visit(FieldInfo, field)` for every field, in the order of --help and of the JSON form.
template <typename Options, typename Visitor>
void for_each_field(Options& o, Visitor&& visit) {
  using enum OnResume;
  using enum Verbs;
  const char* group = "Data";
  visit(FieldInfo{"task", group, kFixed, "The verb that made the run", kNone}, o.task);
  visit(FieldInfo{"data", group, kFree,
                  "train: folder of `kda data build` (pretrain*.txt, heldout*.txt) or `kda data "
                  "pack`, or one .txt (documents separated by empty lines) or .jsonl file. sft: "
                  "that folder (sft*.jsonl) or a .jsonl file with src, tgt, direction or "
                  "instruction, input, output per line"},
        o.data);
  // Free here: what must not change is the file's hash, which a resumed run compares itself.
  visit(FieldInfo{"tokenizer", group, kFree,
                  "Tokenizer file (`kda tokenizer train`); a packed folder brings its own, a "
                  "checkpoint to start from too"},
        o.tokenizer);
  visit(FieldInfo{"cache", group, kFree, "Folder for token shards; default: DATA/cache"}, o.cache);
  visit(FieldInfo{"heldout_share", group, kFixed,
                  "Share of the documents (examples) to hold out when the data has no held-out "
                  "file"},
        o.heldout_share);
  visit(FieldInfo{"limit", group, kFixed,
                  "Train on so many documents (examples), evenly spaced over the data; 0 = all"},
        o.limit);

  group = "Model";
  visit(FieldInfo{"preset", group, kFixed,
                  "Shape of the model: tiny, toy (KDA and SwiGLU); k3-tiny, k3-toy, k3-0.5b (KDA "
                  "and MLA layers, experts)",
                  kTrainOnly},
        o.preset);
  visit(FieldInfo{"model_config", group, kFixed, "Model config.json to use in place of a preset",
                  kTrainOnly},
        o.model_config);
  visit(FieldInfo{"set", group, kFixed,
                  "Change one field of the model config, e.g. --set num_hidden_layers=6 or "
                  "--set linear_attn_config.chunk_size=64; repeatable",
                  kTrainOnly},
        o.set);
  visit(FieldInfo{"attnres", group, kFixed,
                  "Attention over depth in place of residual sums: off, block or full", kTrainOnly},
        o.attnres);
  visit(FieldInfo{"attnres_block_size", group, kFixed,
                  "Layers per block with --attnres block; 0 = about an eighth of the layers",
                  kTrainOnly},
        o.attnres_block_size);
  visit(FieldInfo{"init_from", group, kFixed,
                  "Start from the weights of a checkpoint, with a new optimizer and schedule"},
        o.init_from);

  group = "Budget";
  visit(FieldInfo{"steps", group, kFree, "Optimizer steps of the whole run, e.g. 800, 2k or 500u"},
        o.steps);
  visit(FieldInfo{"max_tokens", group, kFree,
                  "Training tokens of the whole run, e.g. 8.2M or 2Mt (tokens = batch x seq-len x "
                  "grad-accum x steps)"},
        o.max_tokens);
  visit(FieldInfo{"epochs", group, kFree, "Passes over the training data, e.g. 3 or 3e"}, o.epochs);
  visit(FieldInfo{"batch", group, kFixed,
                  "train: rows per micro-batch; sft: a micro-batch has whole examples of at most "
                  "batch x seq-len tokens"},
        o.batch);
  visit(FieldInfo{"seq_len", group, kFixed,
                  "train: tokens per row; sft: longer examples are left out"},
        o.seq_len);
  visit(FieldInfo{"grad_accum", group, kFixed, "Micro-batches per optimizer step"}, o.grad_accum);

  group = "Optimizer";
  visit(FieldInfo{"optimizer", group, kFixed,
                  "adamw, or muon: orthogonalised updates for matrices, head by head, AdamW for "
                  "the rest"},
        o.optimizer);
  visit(FieldInfo{"lr", group, kFixed, "Peak learning rate"}, o.lr);
  visit(FieldInfo{"warmup", group, kFixed,
                  "Steps of linear warm-up; default: 64, at most a tenth of the run"},
        o.warmup);
  visit(FieldInfo{"schedule", group, kFixed,
                  "After the warm-up: cosine down to the floor, or wsd: stable, then decay"},
        o.schedule);
  visit(FieldInfo{"decay", group, kFixed,
                  "Steps of the decay at the end with --schedule wsd; default: a tenth of the run"},
        o.decay);
  visit(FieldInfo{"lr_floor", group, kFixed, "Last learning rate as a share of the peak"},
        o.lr_floor);
  visit(FieldInfo{"weight_decay", group, kFixed,
                  "Decay of matrices and embeddings; norms, convolutions, gates have none"},
        o.weight_decay);
  visit(FieldInfo{"beta1", group, kFixed, "AdamW beta1"}, o.beta1);
  visit(FieldInfo{"beta2", group, kFixed, "AdamW beta2"}, o.beta2);
  visit(FieldInfo{"eps", group, kFixed, "AdamW epsilon"}, o.eps);
  visit(FieldInfo{"momentum", group, kFixed, "Muon momentum (Nesterov)"}, o.momentum);
  visit(FieldInfo{"qk_clip", group, kFixed,
                  "With muon: largest attention logit of an MLA head; weights of a head above it "
                  "are scaled down; 0 = off"},
        o.qk_clip);
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
  visit(FieldInfo{"device", group, kFree,
                  "cpu, cuda, cuda:N, or auto: the first GPU when there is one"},
        o.device);
  visit(FieldInfo{"backend", group, kFree, "Backend of the KDA operator: auto, cpu, ref or cuda"},
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

  group = "Translation";
  visit(FieldInfo{"src", group, kFree,
                  "Sentences to translate at every evaluation, one per line; default: eval/dev.* "
                  "of the data folder, both directions",
                  kSftOnly},
        o.src);
  visit(FieldInfo{"ref", group, kFree, "Their references, line by line", kSftOnly}, o.ref);
  visit(FieldInfo{"target_lang", group, kFree,
                  "Language of the references, en or zh; also of examples without a direction",
                  kSftOnly},
        o.target_lang);
  visit(FieldInfo{"mt_pairs", group, kFree,
                  "Sentences per direction and evaluation, evenly spaced; 0 = none", kSftOnly},
        o.mt_pairs);
  visit(FieldInfo{"mt_tokens", group, kFree, "Longest translation in tokens", kSftOnly},
        o.mt_tokens);

  group = "Debugging";
  visit(FieldInfo{"overfit_batch", group, kFixed,
                  "Train on the first batch only: the loss must go to zero"},
        o.overfit_batch);
  visit(FieldInfo{"poison_step", group, kFree,
                  "Put a NaN into the gradient of the middle layer at this step, to rehearse "
                  "--on-nonfinite"},
        o.poison_step);
  visit(FieldInfo{"profile", group, kFree,
                  "Measure so many steps (after two): share of data, forward, backward, optimizer, "
                  "and of the KDA operator; 0 = off"},
        o.profile);
}

/// "--grad-accum" for "grad_accum".
std::string flag_of(const std::string& key);

/// The field of the verb that a wrong key most likely means: a near spelling, or what other
/// trainers call it ("learning_rate" is lr). "" when nothing is near.
std::string nearest_key(const std::string& key, Task task);

// Text of one value, as the command line takes it and the printed configuration shows it. Parsing
// throws kInvalidArgument naming `flag`.
std::string to_text(const std::string& value);
std::string to_text(std::int64_t value);
std::string to_text(double value);
std::string to_text(bool value);
std::string to_text(const Count& value);
std::string to_text(Task value);
std::string to_text(const Period& value);
std::string to_text(const NonFinitePolicy& value);
std::string to_text(const std::vector<std::string>& value);
void parse_text(const std::string& text, const std::string& flag, std::string& value);
void parse_text(const std::string& text, const std::string& flag, std::int64_t& value);
void parse_text(const std::string& text, const std::string& flag, double& value);
void parse_text(const std::string& text, const std::string& flag, bool& value);
void parse_text(const std::string& text, const std::string& flag, Count& value);
void parse_text(const std::string& text, const std::string& flag, Task& value);
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

/// Shape and budget that a preset is meant to be trained with, for the fields that the user left
/// alone: k3-0.5b takes 2 x 2048 tokens, 8 micro-batches a step, bf16, recomputation (which a run
/// leaves out again where memory is plenty), and 250 steps when no budget is given.
void apply_preset_defaults(TrainOptions& options, const std::set<std::string>& given_keys);

/// The configuration as aligned "key value" lines, grouped: what a run prints at its start. Fields
/// of the other verb are left out; `effective` has texts for fields whose value is only a wish
/// ("threads" 0).
std::string describe_options(const TrainOptions& options,
                             const std::map<std::string, std::string>& effective = {});

}  // namespace kda::train
