#include "text/example_packing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "io/escape.h"
#include "kda/error.h"
#include "text/random.h"

namespace kda::text {
namespace {

[[noreturn]] void refuse_examples(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

PackedBatch empty_row() {
  PackedBatch batch;
  batch.rows = 1;
  batch.cu_seqlens.push_back(0);
  return batch;
}

/// `count` of the indices below `size`, evenly spaced.
std::vector<std::uint32_t> thinned(std::vector<std::uint32_t> all, std::uint64_t count) {
  if (count == 0 || count >= all.size()) return all;
  std::vector<std::uint32_t> chosen;
  for (std::uint64_t i = 0; i < count; ++i)
    chosen.push_back(all[static_cast<std::size_t>(i * all.size() / count)]);
  return chosen;
}

}  // namespace

ExampleSet::ExampleSet(std::shared_ptr<const TokenDataset> data, std::int64_t max_tokens,
                       std::uint64_t limit)
    : data_(std::move(data)) {
  if (data_ == nullptr) refuse_examples("examples: expected a dataset, got null");
  const std::uint64_t documents = data_->num_documents();
  if (documents % 2 != 0 || documents / 2 > std::numeric_limits<std::uint32_t>::max()) {
    refuse_examples("examples: expected pairs of documents, at most 2^32 of them, got " +
                    std::to_string(documents) + " documents");
  }
  std::vector<std::uint32_t> fitting;
  for (std::uint64_t i = 0; i < documents / 2; ++i) {
    const std::uint64_t tokens = data_->document_tokens(2 * i) + data_->document_tokens(2 * i + 1);
    if (data_->document_tokens(2 * i) == 0 || data_->document_tokens(2 * i + 1) == 0) continue;
    if (tokens - 1 > static_cast<std::uint64_t>(std::max<std::int64_t>(0, max_tokens))) {
      ++too_long_;
      continue;
    }
    fitting.push_back(static_cast<std::uint32_t>(i));
  }
  if (fitting.empty()) {
    refuse_examples("examples: none of " + std::to_string(documents / 2) +
                    " has at most seq-len = " + std::to_string(max_tokens) + " tokens");
  }
  chosen_ = thinned(std::move(fitting), limit);
  for (const std::uint32_t i : chosen_) {
    const auto prompt = static_cast<std::int64_t>(data_->document_tokens(2 * std::uint64_t{i}));
    const auto answer = static_cast<std::int64_t>(data_->document_tokens(2 * std::uint64_t{i} + 1));
    const std::int64_t inputs = prompt + answer - 1;
    inputs_.push_back(static_cast<std::int32_t>(inputs));
    num_inputs_ += inputs;
    num_targets_ += answer;
    longest_ = std::max(longest_, inputs);
  }
}

std::int64_t ExampleSet::prompt_tokens_of(std::uint64_t example) const {
  return static_cast<std::int64_t>(data_->document_tokens(2 * std::uint64_t{chosen_[example]}));
}

void ExampleSet::append(std::uint64_t example, const std::vector<std::int32_t>& token_bytes,
                        PackedBatch& batch) const {
  const std::uint64_t prompt_document = 2 * std::uint64_t{chosen_[example]};
  const auto prompt = static_cast<std::size_t>(data_->document_tokens(prompt_document));
  const auto answer = static_cast<std::size_t>(data_->document_tokens(prompt_document + 1));
  std::vector<std::int64_t> ids(prompt + answer);
  data_->copy(prompt_document, 0, std::span(ids).first(prompt));
  data_->copy(prompt_document + 1, 0, std::span(ids).subspan(prompt));
  batch.inputs.insert(batch.inputs.end(), ids.begin(), ids.end() - 1);
  // Input i asks for id i + 1; the prompt's own ids are given, not asked for.
  batch.targets.insert(batch.targets.end(), prompt - 1, kIgnoreIndex);
  batch.targets.insert(batch.targets.end(), ids.begin() + static_cast<std::ptrdiff_t>(prompt),
                       ids.end());
  batch.seq_len = static_cast<std::int64_t>(batch.inputs.size());
  batch.cu_seqlens.push_back(batch.seq_len);
  batch.num_tokens = batch.seq_len;
  batch.num_targets += static_cast<std::int64_t>(answer);
  if (token_bytes.empty()) return;
  for (std::size_t i = prompt; i < ids.size(); ++i)
    batch.num_target_bytes += token_bytes[static_cast<std::size_t>(ids[i])];
}

ExampleBatches::ExampleBatches(ExampleSet examples, ExampleOptions options)
    : examples_(std::move(examples)), options_(std::move(options)) {
  if (options_.max_tokens < examples_.longest()) {
    refuse_examples("max_tokens: expected at least the longest example's " +
                    std::to_string(examples_.longest()) + " tokens, got " +
                    std::to_string(options_.max_tokens));
  }
  start_epoch(0);
}

void ExampleBatches::start_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  order_ = shuffled_indices(static_cast<std::uint32_t>(examples_.size()), options_.seed, epoch);
}

PackedBatch ExampleBatches::next() {
  PackedBatch batch = empty_row();
  for (;;) {
    if (position_ == order_.size()) start_epoch(epoch_ + 1);
    const std::uint32_t example = order_[static_cast<std::size_t>(position_)];
    if (batch.seq_len + examples_.inputs_of(example) > options_.max_tokens) break;
    examples_.append(example, options_.token_bytes, batch);
    ++position_;
  }
  ++batches_;
  return batch;
}

DataCursor ExampleBatches::cursor() const {
  return {
      options_.seed, epoch_, position_, 0, batches_, io::to_hex(examples_.data().fingerprint())};
}

void ExampleBatches::restore(const DataCursor& cursor) {
  const std::string fingerprint = io::to_hex(examples_.data().fingerprint());
  if (cursor.dataset != fingerprint) {
    refuse_examples("cursor: belongs to the data " + io::escaped(cursor.dataset) + ", these are " +
                    io::escaped(fingerprint));
  }
  if (cursor.seed != options_.seed) {
    refuse_examples("cursor: seed " + std::to_string(cursor.seed) + ", the stream has " +
                    std::to_string(options_.seed));
  }
  if (cursor.position > examples_.size() || cursor.offset != 0) {
    refuse_examples("cursor: position " + std::to_string(cursor.position) + " of " +
                    std::to_string(examples_.size()) + " examples");
  }
  start_epoch(cursor.epoch);
  position_ = cursor.position;
  batches_ = cursor.rows;
}

std::int64_t ExampleBatches::count_batches(const ExampleSet& examples,
                                           const ExampleOptions& options, std::int64_t epochs) {
  std::int64_t batches = 0;
  std::int64_t filled = options.max_tokens + 1;  // no batch is open yet
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const std::uint32_t i :
         shuffled_indices(static_cast<std::uint32_t>(examples.size()), options.seed,
                          static_cast<std::uint64_t>(epoch))) {
      if (filled + examples.inputs_of(i) > options.max_tokens) {
        ++batches;
        filled = 0;
      }
      filled += examples.inputs_of(i);
    }
  }
  return batches;
}

std::vector<std::vector<std::uint32_t>> held_out_batches(const ExampleSet& examples,
                                                         std::int64_t max_tokens) {
  std::vector<std::vector<std::uint32_t>> batches;
  std::int64_t filled = max_tokens + 1;
  for (std::uint32_t i = 0; i < examples.size(); ++i) {
    if (filled + examples.inputs_of(i) > max_tokens) {
      batches.emplace_back();
      filled = 0;
    }
    batches.back().push_back(i);
    filled += examples.inputs_of(i);
  }
  return batches;
}

}  // namespace kda::text
