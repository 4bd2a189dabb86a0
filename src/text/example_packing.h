/// Prompt-and-answer examples, packed whole.
///
/// An example becomes one sequence: every id but the last is an input, and a target is -100 (does
/// not count) as long as it lies in the prompt, so the answer and its EOS are what is learnt. A
/// micro-batch holds whole examples one after the other, as many as fit into `max_tokens`. Nothing
/// is cut, because the rest of an answer without its question teaches nothing, and nothing is
/// padded: a batch is exactly as long as its examples, so no id stands for "no token".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "text/batch_stream.h"
#include "text/shard.h"

namespace kda::text {

/// Examples as token shards: documents 2i and 2i+1 are the prompt (BOS first) and the answer (EOS
/// last) of example i. Cheap to copy.
class ExampleSet {
 public:
  /// Keeps the examples that have at most `max_tokens` inputs and at least one prompt token before
  /// the answer, then, with `limit` > 0, so many of them, evenly spaced. Error(kInvalidArgument)
  /// for an odd number of documents or when nothing is left.
  ExampleSet(std::shared_ptr<const TokenDataset> data, std::int64_t max_tokens,
             std::uint64_t limit = 0);

  std::uint64_t size() const { return chosen_.size(); }
  std::uint64_t num_too_long() const { return too_long_; }
  std::int64_t num_inputs() const { return num_inputs_; }    ///< of all examples together
  std::int64_t num_targets() const { return num_targets_; }  ///< of all examples together
  std::int64_t longest() const { return longest_; }          ///< inputs of the longest example
  const TokenDataset& data() const { return *data_; }

  std::int64_t inputs_of(std::uint64_t example) const { return inputs_[example]; }
  std::int64_t prompt_tokens_of(std::uint64_t example) const;

  /// Appends an example to a batch of one row, counting bytes of targets when `token_bytes` (one
  /// per id) is not empty.
  void append(std::uint64_t example, const std::vector<std::int32_t>& token_bytes,
              PackedBatch& batch) const;

 private:
  std::shared_ptr<const TokenDataset> data_;
  std::vector<std::uint32_t> chosen_;
  std::vector<std::int32_t> inputs_;
  std::uint64_t too_long_ = 0;
  std::int64_t num_inputs_ = 0;
  std::int64_t num_targets_ = 0;
  std::int64_t longest_ = 0;
};

struct ExampleOptions {
  std::int64_t max_tokens = 0;  ///< of a batch; at least `ExampleSet::longest()`
  std::uint64_t seed = 0;
  std::vector<std::int32_t> token_bytes;  ///< one per id, or empty: bytes are not counted
};

/// Endless: epoch e visits the examples in the order shuffled_indices(size, seed, e); a batch that
/// the end of an epoch leaves open is filled from the next. Batches have one row.
class ExampleBatches final : public BatchStream {
 public:
  ExampleBatches(ExampleSet examples, ExampleOptions options);

  PackedBatch next() override;
  DataCursor cursor() const override;
  void restore(const DataCursor& cursor) override;

  /// How many batches the first `epochs` epochs take, the last one rounded up. Walks over lengths
  /// only.
  static std::int64_t count_batches(const ExampleSet& examples, const ExampleOptions& options,
                                    std::int64_t epochs);

 private:
  void start_epoch(std::uint64_t epoch);

  ExampleSet examples_;
  ExampleOptions options_;
  std::vector<std::uint32_t> order_;
  std::uint64_t epoch_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t batches_ = 0;
};

/// One pass in the order of the data: the same batches every time.
std::vector<std::vector<std::uint32_t>> held_out_batches(const ExampleSet& examples,
                                                         std::int64_t max_tokens);

}  // namespace kda::text
