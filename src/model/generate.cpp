#include "model/generate.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <string>

#include "kda/error.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

// A row that still produces tokens.
struct LiveRow {
  std::size_t prompt;      // which prompt
  std::int64_t draws = 0;  // tokens sampled so far
  std::int64_t next = 0;   // token to feed
};

class Generation {
 public:
  Generation(const CausalLM& model, DecodeState& state,
             const std::vector<std::vector<std::int64_t>>& prompts, const GenerateOptions& options,
             const TokenCallback& on_token)
      : model_(model),
        state_(state),
        prompts_(prompts),
        options_(options),
        on_token_(on_token),
        sampler_(options.sampling),
        rows_(prompts.size()) {}

  std::vector<GeneratedRow> run() {
    at::Tensor logits = prefill();
    if (options_.max_new_tokens == 0) return rows_;
    for (std::size_t n = 0; n < prompts_.size(); ++n)
      live_.push_back({n});
    while (true) {
      check_finite(logits);
      choose(logits);
      if (live_.empty()) return rows_;
      logits = step();
    }
  }

 private:
  // Feeds the prompts piece by piece and keeps each row's logits after its last token.
  at::Tensor prefill() {
    std::size_t longest = 0;
    for (const auto& prompt : prompts_)
      longest = std::max(longest, prompt.size());
    const auto piece = static_cast<std::size_t>(options_.prefill_piece);
    at::Tensor logits;
    for (std::size_t begin = 0; begin < longest; begin += piece) {
      std::vector<std::int64_t> ids;
      std::vector<std::int64_t> cu{0};
      std::vector<std::int64_t> ended;
      for (std::size_t n = 0; n < prompts_.size(); ++n) {
        const auto& prompt = prompts_[n];
        const std::size_t from = std::min(begin, prompt.size());
        const std::size_t to = std::min(begin + piece, prompt.size());
        ids.insert(ids.end(), prompt.begin() + static_cast<std::ptrdiff_t>(from),
                   prompt.begin() + static_cast<std::ptrdiff_t>(to));
        cu.push_back(static_cast<std::int64_t>(ids.size()));
        if (to > from && to == prompt.size()) ended.push_back(static_cast<std::int64_t>(n));
      }
      const at::Tensor out = model_.prefill({index_tensor(ids), index_tensor(cu)}, state_);
      if (!logits.defined()) logits = at::Tensor(out.clone().zero_());
      const at::Tensor index = index_tensor(ended, out.device());
      logits.index_copy_(0, index, out.index_select(0, index));
    }
    return logits;
  }

  // One step of the live rows; the others' states stay as they are.
  at::Tensor step() {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> state_rows;
    for (const LiveRow& row : live_) {
      ids.push_back(row.next);
      state_rows.push_back(static_cast<std::int64_t>(row.prompt));
    }
    if (live_.size() == prompts_.size()) return model_.step(index_tensor(ids), state_);
    return model_.step_rows(index_tensor(ids), state_rows, state_);
  }

  void choose(const at::Tensor& logits) {
    const at::Tensor host = logits.to(at::kCPU);  // one copy, not one for each row
    std::vector<LiveRow> still;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      LiveRow row = live_[i];
      GeneratedRow& out = rows_[row.prompt];
      row.next = sampler_.sample(
          host.select(0, static_cast<std::int64_t>(i)), options_.first_row + row.prompt,
          options_.first_draw + static_cast<std::uint64_t>(row.draws++), history_of(row.prompt));
      if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), row.next) !=
          options_.stop_ids.end()) {
        out.reason = FinishReason::kStop;
        continue;
      }
      out.ids.push_back(row.next);
      if (on_token_ && !on_token_(static_cast<std::int64_t>(row.prompt), row.next)) {
        out.reason = FinishReason::kCancelled;
        continue;
      }
      if (row.draws == options_.max_new_tokens) continue;  // kLength
      still.push_back(row);
    }
    live_ = std::move(still);
  }

  // All ids of a row so far; only where the sampler looks at them.
  std::vector<std::int64_t> history_of(std::size_t n) const {
    std::vector<std::int64_t> ids;
    if (!sampler_.needs_history()) return ids;
    if (!options_.history.empty()) ids = options_.history[n];
    ids.insert(ids.end(), prompts_[n].begin(), prompts_[n].end());
    ids.insert(ids.end(), rows_[n].ids.begin(), rows_[n].ids.end());
    return ids;
  }

  void check_finite(const at::Tensor& logits) const {
    if (at::isfinite(logits).all().item<bool>()) return;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (at::isfinite(logits.select(0, static_cast<std::int64_t>(i))).all().item<bool>()) continue;
      const std::size_t n = live_[i].prompt;
      std::vector<std::int64_t> ids = prompts_[n];
      ids.insert(ids.end(), rows_[n].ids.begin(), rows_[n].ids.end());
      throw Error(ErrorCode::kNonFinite, "non-finite logits at " + source_of(ids) + " (prompt " +
                                             std::to_string(n) + ", after " +
                                             std::to_string(ids.size()) + " tokens)");
    }
  }

  // Where the first NaN or infinity arises: a second run over the tokens, layer by layer.
  std::string source_of(const std::vector<std::int64_t>& ids) const {
    const std::string name = model_.first_nonfinite(pack({ids}));
    if (!name.empty()) return name;
    for (std::size_t layer = 0; layer < state_.layers().size(); ++layer) {
      const LayerState& cache = state_.layers()[layer];
      for (const at::Tensor& tensor : {cache.state_kv, cache.conv_window, cache.latent}) {
        if (tensor.defined() && !at::isfinite(tensor).all().item<bool>()) {
          return "layers." + std::to_string(layer) + ", in the decode state";
        }
      }
    }
    return "a cached step that a full run does not repeat";
  }

  const CausalLM& model_;
  DecodeState& state_;
  const std::vector<std::vector<std::int64_t>>& prompts_;
  const GenerateOptions& options_;
  const TokenCallback& on_token_;
  Sampler sampler_;
  std::vector<GeneratedRow> rows_;
  std::vector<LiveRow> live_;  // in the order of prompts
};

}  // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

std::vector<GeneratedRow> generate(const CausalLM& model, DecodeState& state,
                                   const std::vector<std::vector<std::int64_t>>& prompts,
                                   const GenerateOptions& options, const TokenCallback& on_token) {
  options.sampling.validate();
  if (options.max_new_tokens < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "max_new_tokens: expected >= 0, got " + std::to_string(options.max_new_tokens));
  }
  if (options.prefill_piece < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "prefill_piece: expected >= 1, got " + std::to_string(options.prefill_piece));
  }
  if (!options.history.empty() && options.history.size() != prompts.size()) {
    throw Error(ErrorCode::kInvalidArgument, "history: expected none or " +
                                                 std::to_string(prompts.size()) + " rows, got " +
                                                 std::to_string(options.history.size()));
  }
  check(pack(prompts), model.config().vocab_size);
  return Generation(model, state, prompts, options, on_token).run();
}

std::vector<GeneratedRow> generate(const CausalLM& model,
                                   const std::vector<std::vector<std::int64_t>>& prompts,
                                   const GenerateOptions& options, const TokenCallback& on_token) {
  DecodeState state = model.new_state(static_cast<std::int64_t>(prompts.size()));
  return generate(model, state, prompts, options, on_token);
}

}  // namespace kda::model
