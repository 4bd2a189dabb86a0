#include "train/training_data.h"

#include <cmath>
#include <utility>

#include "io/sha256.h"
#include "kda/error.h"
#include "train/units.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;

std::string count_text(std::uint64_t value) { return short_count(static_cast<double>(value)); }

text::ExampleOptions example_options(const TrainOptions& o) {
  text::ExampleOptions options;
  options.max_tokens = o.batch * o.seq_len;
  options.seed = static_cast<std::uint64_t>(o.seed);
  return options;
}

}  // namespace

TrainingData TrainingData::prepare(const TrainOptions& o, const text::Tokenizer& tokenizer,
                                   Reporter& reporter) {
  const fs::path path = o.data;
  fs::path cache = o.cache;
  if (cache.empty()) cache = (fs::is_directory(path) ? path : path.parent_path()) / "cache";
  const auto limit = static_cast<std::uint64_t>(o.limit.value);
  TrainingData data;
  if (o.task == Task::kPretrain) {
    const DataFiles files = find_data(path);
    data.packed_ = !files.packed.empty();
    data.brings_heldout_ = !files.heldout.empty();
    data.text_ = prepare_data(files, {cache, o.heldout_share}, tokenizer, reporter);
    if (limit > 0) {
      data.text_.train =
          std::make_shared<const text::TokenDataset>(data.text_.train->thinned(limit));
    }
    return data;
  }
  ExampleFiles files;
  files.files = find_examples(path);
  if (!o.target_lang.empty()) files.target = text::language_from(o.target_lang);
  const PreparedData shards =
      prepare_examples(files, {cache, o.heldout_share}, tokenizer, reporter);
  data.examples_.emplace(shards.train, o.seq_len, limit);
  if (shards.heldout) {
    try {
      data.heldout_examples_.emplace(shards.heldout, o.seq_len);
    } catch (const Error& error) {
      reporter.warn(std::string("no held-out loss: ") + error.what());
    }
  }
  if (const std::uint64_t long_ones = data.examples_->num_too_long(); long_ones > 0) {
    reporter.note(count_text(long_ones) + " of " + count_text(shards.train->num_documents() / 2) +
                  " examples are longer than --seq-len " + std::to_string(o.seq_len) +
                  " and left out");
  }
  return data;
}

std::string TrainingData::fingerprint() const {
  return io::to_hex(examples_ ? examples_->data().fingerprint() : text_.train->fingerprint());
}

std::int64_t TrainingData::num_tokens() const {
  return examples_ ? examples_->num_inputs() : static_cast<std::int64_t>(text_.train->num_tokens());
}

std::int64_t TrainingData::num_targets() const {
  return examples_ ? examples_->num_targets() : num_tokens();
}

std::uint64_t TrainingData::num_documents() const {
  return examples_ ? examples_->size() : text_.train->num_documents();
}

bool TrainingData::has_heldout() const {
  return examples_ ? heldout_examples_.has_value() : text_.heldout != nullptr;
}

std::int64_t TrainingData::heldout_tokens() const {
  if (!has_heldout()) return 0;
  return examples_ ? heldout_examples_->num_inputs()
                   : static_cast<std::int64_t>(text_.heldout->num_tokens());
}

std::string TrainingData::description() const {
  std::string text = count_text(static_cast<std::uint64_t>(num_tokens())) + " tokens in " +
                     count_text(num_documents());
  if (examples_) {
    text += " examples (" + count_text(static_cast<std::uint64_t>(num_targets())) +
            " of them in answers, which are learnt)";
  } else {
    text += " documents (" + short_bytes(static_cast<double>(text_.train->text_bytes())) +
            " of text in all files)";
  }
  return text + ", held-out " +
         (has_heldout() ? count_text(static_cast<std::uint64_t>(heldout_tokens())) + " tokens"
                        : "none");
}

std::unique_ptr<text::BatchStream> TrainingData::stream(const TrainOptions& o) const {
  if (examples_) return std::make_unique<text::ExampleBatches>(*examples_, example_options(o));
  text::PackingOptions options;
  options.seq_len = o.seq_len;
  options.rows = o.batch;
  options.seed = static_cast<std::uint64_t>(o.seed);
  return std::make_unique<text::TextBatches>(text_.train, options);
}

double TrainingData::micro_batches(const TrainOptions& o, std::int64_t epochs) const {
  const double inputs = static_cast<double>(epochs) * static_cast<double>(num_tokens());
  if (!examples_) return inputs / tokens_per_micro_batch(o);
  // Walking over so many epochs would take longer than refusing them is worth.
  constexpr std::int64_t kExactEpochs = 1000;
  if (epochs > kExactEpochs) return inputs / tokens_per_micro_batch(o);
  return static_cast<double>(
      text::ExampleBatches::count_batches(*examples_, example_options(o), epochs));
}

double TrainingData::tokens_per_micro_batch(const TrainOptions& o) const {
  if (!examples_) return static_cast<double>(o.batch) * static_cast<double>(o.seq_len);
  const std::int64_t batches =
      text::ExampleBatches::count_batches(*examples_, example_options(o), 1);
  return static_cast<double>(num_tokens()) / static_cast<double>(batches);
}

double TrainingData::sequences_per_micro_batch(const TrainOptions& o) const {
  const double tokens = static_cast<double>(o.batch) * static_cast<double>(o.seq_len);
  const double documents =
      tokens * static_cast<double>(num_documents()) / static_cast<double>(num_tokens());
  return examples_ ? documents : documents + static_cast<double>(o.batch);
}

std::int64_t TrainingData::mapped_bytes() const {
  std::uint64_t bytes = 0;
  const auto add = [&](const text::TokenDataset& data) {
    for (const text::ShardReader& shard : data.shards())
      bytes += shard.num_bytes();
  };
  if (text_.train) add(*text_.train);
  if (text_.heldout) add(*text_.heldout);
  if (examples_) add(examples_->data());
  if (heldout_examples_) add(heldout_examples_->data());
  return static_cast<std::int64_t>(bytes);
}

EvalResult TrainingData::evaluate_heldout(const model::CausalLM& model,
                                          const text::Tokenizer& tokenizer,
                                          const EvalOptions& options, Reporter& reporter) const {
  if (!examples_) return evaluate(model, text_.heldout, tokenizer, options, reporter);
  return evaluate_examples(model, *heldout_examples_, tokenizer, options, reporter);
}

}  // namespace kda::train
