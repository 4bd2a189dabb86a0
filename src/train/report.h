/// What a run tells its user: plain records, their console lines and their JSON form. The library
/// prints nothing; the program implements Reporter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"

namespace kda::train {

struct StepRecord {
  std::int64_t step = 0;  ///< 1-based: steps done after this one
  std::int64_t total_steps = 0;
  std::int64_t tokens = 0;  ///< read so far
  std::int64_t total_tokens = 0;
  double loss = 0;  ///< mean over the targets of the step, natural log
  double loss_ema = 0;
  std::optional<double> loss_z;
  double grad_norm = 0;  ///< before clipping
  std::optional<double> grad_z;
  double lr = 0;
  std::optional<double>
      moe_max_load;  ///< tokens of the busiest expert over the mean, when looked at
  double epoch = 0;
  bool skipped = false;  ///< the weights were left alone, see `why_skipped`
  std::string why_skipped;
  // From here on things that differ between two equal runs.
  double step_ms = 0;
  double tokens_per_second = 0;
  std::int64_t resident_bytes = 0;
  std::int64_t device_bytes = 0;  ///< GPU memory in use; 0 on the host
  double eta_seconds = 0;
};

struct EvalRecord {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  bool has_loss = true;      ///< false: there is no held-out text, only translations
  double loss = 0;           ///< mean cross entropy of the held-out targets, natural log
  double bits_per_byte = 0;  ///< sum of the cross entropies / ln 2 / UTF-8 bytes; 0 = unknown
  std::int64_t targets = 0;
  std::int64_t bytes = 0;
  // Translations, in fine-tuning; 0 sentences: none were made.
  std::int64_t mt_sentences = 0;
  double success_rate = 0;
  double mean_chrf = 0;
  bool best = false;
  double best_loss = 0;
  std::int64_t best_step = 0;
  double seconds = 0;
};

struct SampleRecord {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;
  std::string finish;  ///< "stop" or "length"
};

struct SaveRecord {
  std::int64_t step = 0;
  std::string folder;
  std::int64_t bytes = 0;
  double seconds = 0;
  bool best = false;
};

/// Progress of a phase that is not training: tokenizing, evaluation.
struct ProgressRecord {
  std::string phase;
  double done = 0;
  double total = 0;
  double seconds = 0;
  bool bytes = false;  ///< done and total are bytes, else items
};

class Reporter {
 public:
  virtual ~Reporter() = default;
  virtual void heading(std::string_view) {}  ///< start of a block of notes
  virtual void note(std::string_view) {}     ///< one or more lines of facts
  virtual void warn(std::string_view) {}
  virtual void progress(const ProgressRecord&) {}
  virtual void step(const StepRecord&, bool /*log*/) {}  ///< every step; `log` when a line is due
  virtual void evaluation(const EvalRecord&) {}
  virtual void sample(const SampleRecord&) {}
  virtual void saved(const SaveRecord&) {}
};

/// "step 120/800 | tok 123k/819k | loss 5.2310 ema 5.3102 (z +0.3) | gn 0.82 (z -0.1) | ...".
std::string console_line(const StepRecord& record);
std::string console_line(const EvalRecord& record);
std::string console_line(const SaveRecord& record);
std::string console_line(const ProgressRecord& record);

/// One metrics.jsonl line each, with a "kind" and a "step".
io::Json to_json(const StepRecord& record);
io::Json to_json(const EvalRecord& record);
io::Json to_json(const SampleRecord& record);
io::Json to_json(const SaveRecord& record);

/// Keys of a step's JSON that depend on the machine's speed; all others are equal in equal runs.
bool is_timing_key(std::string_view key);

}  // namespace kda::train
