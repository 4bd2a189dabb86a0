/// The data of a run, whichever verb it belongs to: what to train on, what to measure on, and how
/// much there is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "text/batch_stream.h"
#include "text/example_packing.h"
#include "text/tokenizer.h"
#include "train/dataset.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/report.h"

namespace kda::train {

class TrainingData {
 public:
  /// Nothing yet; `prepare` gives a usable one.
  TrainingData() = default;

  /// Finds, tokenizes (once, into the cache) and opens what `options.data` names, for the options'
  /// verb. Errors as of find_data, prepare_data and prepare_examples.
  static TrainingData prepare(const TrainOptions& options, const text::Tokenizer& tokenizer,
                              Reporter& reporter);

  std::string fingerprint() const;      ///< of the training shards
  std::int64_t num_tokens() const;      ///< inputs of one epoch
  std::int64_t num_targets() const;     ///< of one epoch; text: about num_tokens
  std::uint64_t num_documents() const;  ///< or examples
  bool has_heldout() const;
  bool is_packed() const { return packed_; }               ///< a folder of `kda data pack`
  bool brings_heldout() const { return brings_heldout_; }  ///< files of held-out text
  std::int64_t heldout_tokens() const;                     ///< 0: none
  /// "1.2M tokens in 3.4k documents (5.6M of text), held-out 7.8k tokens".
  std::string description() const;

  std::unique_ptr<text::BatchStream> stream(const TrainOptions& options) const;

  /// Micro-batches that `epochs` epochs take (double: the product may be beyond any run).
  double micro_batches(const TrainOptions& options, std::int64_t epochs) const;
  /// Inputs of a micro-batch, on average; text: batch x seq-len.
  double tokens_per_micro_batch(const TrainOptions& options) const;
  /// Sequences of a full micro-batch, on average: examples, or pieces of documents in rows.
  double sequences_per_micro_batch(const TrainOptions& options) const;
  /// Of the token files, which are mapped: their pages count as the program's while they are used,
  /// and the system takes them back when memory gets scarce.
  std::int64_t mapped_bytes() const;

  EvalResult evaluate_heldout(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                              const EvalOptions& options, Reporter& reporter) const;

 private:
  PreparedData text_;
  std::optional<text::ExampleSet> examples_;
  std::optional<text::ExampleSet> heldout_examples_;
  bool packed_ = false;
  bool brings_heldout_ = false;
};

}  // namespace kda::train
