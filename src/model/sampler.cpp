#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "io/number_text.h"
#include "kda/error.h"
#include "model/philox.h"

namespace kda::model {
namespace {

[[noreturn]] void refuse(const char* option, const char* expected, const std::string& given) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(option) + ": expected " + expected + ", got " + given);
}

struct Candidate {
  double weight;  // unnormalised probability
  std::int64_t id;
};

// Likelier first; the lower id among equals, so that the order is the same everywhere.
bool before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

std::int64_t greedy(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// Each id once, however often it occurred.
void penalise(std::vector<float>& logits, std::span<const std::int64_t> history,
              const SamplingOptions& options) {
  const auto window = static_cast<std::size_t>(options.repetition_window);
  if (window > 0 && window < history.size()) history = history.last(window);
  std::vector<std::int64_t> ids(history.begin(), history.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto penalty = static_cast<float>(options.repetition_penalty);
  for (const std::int64_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

}  // namespace

void SamplingOptions::validate() const {
  if (!(temperature >= 0.0) || !std::isfinite(temperature)) {
    refuse("temperature", "0 (greedy) or a positive number", io::number_text(temperature));
  }
  if (top_k < 0) refuse("top_k", "0 (off) or a positive count", std::to_string(top_k));
  if (!(top_p > 0.0 && top_p <= 1.0)) refuse("top_p", "a number in (0,1]", io::number_text(top_p));
  if (!(min_p >= 0.0 && min_p <= 1.0)) refuse("min_p", "a number in [0,1]", io::number_text(min_p));
  if (!(repetition_penalty > 0.0) || !std::isfinite(repetition_penalty)) {
    refuse("repetition_penalty", "a positive number (1 = off)",
           io::number_text(repetition_penalty));
  }
  if (repetition_window < 0) {
    refuse("repetition_window", "0 (all) or a positive count", std::to_string(repetition_window));
  }
}

double philox_uniform(std::uint64_t seed, std::uint64_t row, std::uint64_t position) {
  return philox_uniforms(seed, row, position)[0];
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) { options_.validate(); }

std::int64_t Sampler::sample(const at::Tensor& logits, std::uint64_t row, std::uint64_t position,
                             std::span<const std::int64_t> history) const {
  const at::Tensor host = logits.to(at::kCPU, at::kFloat).contiguous();
  std::span<const float> values(host.const_data_ptr<float>(),
                                static_cast<std::size_t>(host.numel()));
  if (values.empty()) refuse("logits", "at least one", "none");
  for (const float value : values) {
    if (!std::isfinite(value)) {
      throw Error(ErrorCode::kNonFinite, "logits: a value is NaN or infinite");
    }
  }
  std::vector<float> penalised;
  if (needs_history() && !history.empty()) {
    penalised.assign(values.begin(), values.end());
    penalise(penalised, history, options_);
    values = penalised;
  }
  if (options_.temperature == 0.0) return greedy(values);

  const double top = *std::max_element(values.begin(), values.end());
  std::vector<Candidate> kept(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Never above exp(0): a tiny temperature cannot overflow, it only empties the tail.
    const double weight = std::exp((static_cast<double>(values[i]) - top) / options_.temperature);
    kept[i] = {weight, static_cast<std::int64_t>(i)};
  }
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (options_.top_k > 0 && k < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + options_.top_k, kept.end(), before);
    kept.resize(k);
  }
  if (options_.top_p < 1.0) {
    std::sort(kept.begin(), kept.end(), before);
    double total = 0;
    for (const Candidate& candidate : kept)
      total += candidate.weight;
    double running = 0;
    std::size_t count = 0;
    while (count < kept.size() && (count == 0 || running < options_.top_p * total)) {
      running += kept[count++].weight;
    }
    kept.resize(count);
  }
  if (options_.min_p > 0.0) {
    // The best weight is exp(0) = 1, and it stays.
    std::erase_if(kept, [&](const Candidate& c) { return c.weight < options_.min_p; });
  }
  // By id, so that the draw does not depend on how the candidates were found.
  std::sort(kept.begin(), kept.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& candidate : kept)
    total += candidate.weight;
  const double mark = philox_uniform(options_.seed, row, position) * total;
  double running = 0;
  for (const Candidate& candidate : kept) {
    running += candidate.weight;
    if (mark < running) return candidate.id;
  }
  // Rounding left the mark at the very end: the last candidate that can be drawn.
  const auto last =
      std::find_if(kept.rbegin(), kept.rend(), [](const Candidate& c) { return c.weight > 0.0; });
  return last->id;
}

}  // namespace kda::model
