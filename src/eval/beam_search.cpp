#include "eval/beam_search.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kda/error.h"
#include "model/batch.h"
#include "model/tensors.h"

namespace kda::eval {
namespace {

/// A hypothesis that goes on. Its decode state is the row of the same number in the state.
struct Live {
  std::vector<std::int64_t> ids;
  double log_prob = 0;
};

/// One prompt: its live hypotheses and the ended ones, best first.
struct Search {
  std::size_t prompt = 0;
  std::vector<Live> live;
  std::vector<BeamHypothesis> ended;
};

struct Extension {
  double log_prob;
  std::size_t parent;
  std::int64_t id;
};

bool before(const Extension& a, const Extension& b) {
  if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
  return a.parent != b.parent ? a.parent < b.parent : a.id < b.id;
}

class BeamSearch {
 public:
  BeamSearch(const model::CausalLM& model, const std::vector<std::vector<std::int64_t>>& prompts,
             const BeamOptions& options)
      : model_(model), prompts_(prompts), options_(options), best_(prompts.size()) {}

  std::vector<BeamHypothesis> run(const std::function<void()>& poll) {
    const model::PackedIds packed = model::pack(prompts_);
    model::check(packed, model_.config().vocab_size);
    if (options_.max_new_tokens == 0) return best_;
    state_ = model_.new_state(static_cast<std::int64_t>(prompts_.size()));
    at::Tensor logits = model_.prefill(packed, state_);
    for (std::size_t n = 0; n < prompts_.size(); ++n)
      searches_.push_back({n, {Live{}}, {}});
    while (true) {
      if (poll) poll();
      extend(logits);
      if (searches_.empty()) return best_;
      logits = model_.step(model::index_tensor(next_ids_), state_);
    }
  }

 private:
  double normalised(double log_prob, std::size_t length) const {
    return log_prob / std::pow(static_cast<double>(length), options_.length_penalty);
  }

  bool is_stop(std::int64_t id) const {
    return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
           options_.stop_ids.end();
  }

  // Replaces all live hypotheses by their extensions and moves the state's rows along.
  void extend(const at::Tensor& logits) {
    check_finite(logits);
    // At least `beam` of them do not stop.
    const std::int64_t wanted =
        std::min(options_.beam + static_cast<std::int64_t>(options_.stop_ids.size()),
                 model_.config().vocab_size);
    const auto [top_values, top_ids] =
        at::topk(at::log_softmax(logits, -1, at::kDouble), wanted, -1);
    const at::Tensor values = top_values.to(at::kCPU).contiguous();
    const at::Tensor ids = top_ids.to(at::kCPU).contiguous();
    const double* value = values.const_data_ptr<double>();
    const std::int64_t* id = ids.const_data_ptr<std::int64_t>();

    std::vector<std::int64_t> rows;
    std::vector<Search> still;
    next_ids_.clear();
    std::size_t first_row = 0;
    for (Search& search : searches_) {
      std::vector<Extension> extensions;
      for (std::size_t h = 0; h < search.live.size(); ++h) {
        const std::size_t offset = (first_row + h) * static_cast<std::size_t>(wanted);
        for (std::size_t k = 0; k < static_cast<std::size_t>(wanted); ++k) {
          extensions.push_back({search.live[h].log_prob + value[offset + k], h, id[offset + k]});
        }
      }
      std::sort(extensions.begin(), extensions.end(), before);
      const std::size_t parents = search.live.size();
      std::vector<std::size_t> origin = advance(search, extensions);
      if (is_done(search)) {
        best_[search.prompt] = best_of(search);
      } else {
        for (std::size_t h = 0; h < search.live.size(); ++h) {
          rows.push_back(static_cast<std::int64_t>(first_row + origin[h]));
          next_ids_.push_back(search.live[h].ids.back());
        }
        still.push_back(std::move(search));
      }
      first_row += parents;
    }
    searches_ = std::move(still);
    if (!searches_.empty() && !is_identity(rows)) state_.select_rows(rows);
  }

  bool is_identity(const std::vector<std::int64_t>& rows) const {
    if (static_cast<std::int64_t>(rows.size()) != state_.num_rows()) return false;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != static_cast<std::int64_t>(i)) return false;
    }
    return true;
  }

  // Takes the best extensions; returns the parent of each new live hypothesis.
  std::vector<std::size_t> advance(Search& search, const std::vector<Extension>& extensions) {
    const auto beam = static_cast<std::size_t>(options_.beam);
    std::vector<Live> next;
    std::vector<std::size_t> origin;
    for (std::size_t rank = 0; rank < extensions.size() && next.size() < beam; ++rank) {
      const Extension& extension = extensions[rank];
      const std::vector<std::int64_t>& ids = search.live[extension.parent].ids;
      if (is_stop(extension.id)) {
        if (rank < beam) {
          search.ended.push_back({ids, extension.log_prob,
                                  normalised(extension.log_prob, ids.size() + 1),
                                  model::FinishReason::kStop});
        }
        continue;
      }
      next.push_back({ids, extension.log_prob});
      next.back().ids.push_back(extension.id);
      origin.push_back(extension.parent);
    }
    search.live = std::move(next);
    std::stable_sort(
        search.ended.begin(), search.ended.end(),
        [](const BeamHypothesis& a, const BeamHypothesis& b) { return a.score > b.score; });
    if (search.ended.size() > beam) search.ended.resize(beam);
    return origin;
  }

  bool is_done(const Search& search) const {
    if (search.live.empty()) return true;
    const Live& best = search.live.front();
    if (static_cast<std::int64_t>(best.ids.size()) == options_.max_new_tokens) return true;
    return search.ended.size() == static_cast<std::size_t>(options_.beam) &&
           normalised(best.log_prob, best.ids.size()) <= search.ended.back().score;
  }

  BeamHypothesis best_of(const Search& search) const {
    if (!search.ended.empty()) return search.ended.front();
    const Live& live = search.live.front();
    return {live.ids, live.log_prob, normalised(live.log_prob, live.ids.size()),
            model::FinishReason::kLength};
  }

  void check_finite(const at::Tensor& logits) const {
    const at::Tensor finite = at::isfinite(logits).all(-1).to(at::kCPU);
    std::int64_t row = 0;
    for (const Search& search : searches_) {
      for (const Live& live : search.live) {
        if (finite.select(0, row++).item<bool>()) continue;
        std::vector<std::int64_t> ids = prompts_[search.prompt];
        ids.insert(ids.end(), live.ids.begin(), live.ids.end());
        const std::string name = model_.first_nonfinite(model::pack({ids}));
        throw Error(ErrorCode::kNonFinite,
                    "non-finite logits at " +
                        (name.empty() ? std::string("a cached step that a full run does not repeat")
                                      : name) +
                        " (prompt " + std::to_string(search.prompt) + ", after " +
                        std::to_string(ids.size()) + " tokens)");
      }
    }
  }

  const model::CausalLM& model_;
  const std::vector<std::vector<std::int64_t>>& prompts_;
  const BeamOptions& options_;
  model::DecodeState state_;
  std::vector<Search> searches_;
  std::vector<std::int64_t> next_ids_;  // one for each live hypothesis
  std::vector<BeamHypothesis> best_;
};

[[noreturn]] void refuse(const char* name, const std::string& expected, const std::string& given) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": expected " + expected + ", got " + given);
}

}  // namespace

std::vector<BeamHypothesis> beam_search(const model::CausalLM& model,
                                        const std::vector<std::vector<std::int64_t>>& prompts,
                                        const BeamOptions& options,
                                        const std::function<void()>& poll) {
  if (options.beam < 1) refuse("beam", ">= 1", std::to_string(options.beam));
  if (options.max_new_tokens < 0) {
    refuse("max_new_tokens", ">= 0", std::to_string(options.max_new_tokens));
  }
  if (!std::isfinite(options.length_penalty)) {
    refuse("length_penalty", "a finite number", std::to_string(options.length_penalty));
  }
  return BeamSearch(model, prompts, options).run(poll);
}

}  // namespace kda::eval
