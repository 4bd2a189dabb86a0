#include "eval/perplexity.h"

#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "kda/error.h"
#include "model/batch.h"
#include "model/tensors.h"

namespace kda::eval {
namespace {

static_assert(text::kIgnoreIndex == model::kIgnoreTarget);

/// Rows on their way to the model.
struct Rows {
  std::vector<std::int64_t> inputs, targets, cu_seqlens;
  std::int64_t tokens = 0;
};

class Measurement {
 public:
  Measurement(const model::CausalLM& model, const text::Tokenizer& tokenizer,
              const PerplexityOptions& options, std::int64_t wanted,
              const PerplexityProgress& progress)
      : model_(model),
        token_bytes_(tokenizer.token_bytes()),
        options_(options),
        wanted_(wanted),
        progress_(progress) {}

  bool done() const { return result_.tokens + pending_.tokens == wanted_; }

  /// Takes a row as far as tokens are still wanted.
  void add(const text::PackedBatch& row) {
    if (done()) return;
    const auto offset = static_cast<std::int64_t>(pending_.inputs.size());
    pending_.inputs.insert(pending_.inputs.end(), row.inputs.begin(), row.inputs.end());
    for (std::int64_t target : row.targets) {
      const bool counts = target != text::kIgnoreIndex && !done();
      pending_.targets.push_back(counts ? target : text::kIgnoreIndex);
      if (!counts) continue;
      ++pending_.tokens;
      if (target < static_cast<std::int64_t>(token_bytes_.size())) {
        result_.bytes += token_bytes_[static_cast<std::size_t>(target)];
      }
    }
    for (std::size_t i = 0; i + 1 < row.cu_seqlens.size(); ++i)
      pending_.cu_seqlens.push_back(offset + row.cu_seqlens[i]);
    if (++rows_ == options_.batch) flush();
  }

  void flush() {
    if (rows_ == 0) return;
    if (progress_) progress_(result_.tokens, wanted_);
    pending_.cu_seqlens.push_back(static_cast<std::int64_t>(pending_.inputs.size()));
    const model::PackedIds packed{model::index_tensor(pending_.inputs),
                                  model::index_tensor(pending_.cu_seqlens)};
    const double sum =
        at::sum(model_.token_losses(packed, model::index_tensor(pending_.targets)), at::kDouble)
            .item<double>();
    if (!std::isfinite(sum)) {
      throw Error(ErrorCode::kNonFinite, "cross entropy is not finite: first bad activation: " +
                                             model_.first_nonfinite(packed));
    }
    sum_ += sum;
    result_.tokens += pending_.tokens;
    pending_ = {};
    rows_ = 0;
  }

  Perplexity result() const {
    Perplexity result = result_;
    result.loss = sum_ / static_cast<double>(result.tokens);
    if (result.bytes > 0) {
      result.bits_per_byte = sum_ / std::numbers::ln2 / static_cast<double>(result.bytes);
    }
    return result;
  }

 private:
  const model::CausalLM& model_;
  const std::vector<std::int32_t>& token_bytes_;
  const PerplexityOptions& options_;
  std::int64_t wanted_;
  const PerplexityProgress& progress_;
  Perplexity result_;
  double sum_ = 0;
  Rows pending_;
  std::int64_t rows_ = 0;
};

}  // namespace

double Perplexity::perplexity() const { return std::exp(loss); }

Perplexity measure_perplexity(const model::CausalLM& model,
                              const std::shared_ptr<const text::TokenDataset>& data,
                              const text::Tokenizer& tokenizer, const PerplexityOptions& options,
                              const PerplexityProgress& progress) {
  if (options.batch < 1 || options.max_tokens < 0) {
    throw Error(ErrorCode::kInvalidArgument, "batch and max_tokens: expected >= 1 and >= 0, got " +
                                                 std::to_string(options.batch) + " and " +
                                                 std::to_string(options.max_tokens));
  }
  text::PackingOptions packing;
  packing.seq_len = options.seq_len;
  packing.rows = 1;
  const std::int32_t pad =
      tokenizer.info().pad_id >= 0 ? tokenizer.info().pad_id : std::max(tokenizer.eos_id(), 0);
  text::HeldOutIterator rows(data, packing, pad);
  std::int64_t available = 0;
  std::int64_t num_rows = 0;
  for (; const auto row = rows.next(); ++num_rows)
    available += row->num_targets;
  if (available == 0) {
    throw Error(ErrorCode::kInvalidArgument, "text: it has no token to predict");
  }
  const std::int64_t wanted =
      options.max_tokens == 0 ? available : std::min(options.max_tokens, available);
  // So many rows hold the tokens wanted, if rows have equally many.
  const auto share = static_cast<double>(wanted) / static_cast<double>(available);
  const auto chosen = std::min(
      num_rows, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(num_rows))));
  Measurement measurement(model, tokenizer, options, wanted, progress);
  // Where the evenly spaced rows hold too few, the others fill up.
  for (const bool spaced : {true, false}) {
    rows.rewind();
    for (std::int64_t i = 0; i < num_rows && !measurement.done(); ++i) {
      const auto row = rows.next();
      const bool is_spaced = (i + 1) * chosen / num_rows != i * chosen / num_rows;
      if (row && is_spaced == spaced) measurement.add(*row);
    }
  }
  measurement.flush();
  Perplexity result = measurement.result();
  result.available = available;
  return result;
}

}  // namespace kda::eval
