/// Choosing the next token from logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace kda::model {

struct SamplingOptions {
  double temperature = 0.0;  ///< 0: greedy (lowest id among equals); else > 0 and finite
  std::int64_t top_k = 0;    ///< 0: off; larger than the vocabulary: off
  double top_p = 1.0;        ///< in (0,1]; the best token is always kept
  double min_p = 0.0;        ///< in [0,1]: least probability as a share of the best token's; 0: off
  /// > 0: logits of tokens that occur in the history are divided by it where positive, multiplied
  /// where negative (Keskar et al. 2019); 1: off.
  double repetition_penalty = 1.0;
  std::int64_t repetition_window = 0;  ///< last tokens of the history that count; 0: all
  std::uint64_t seed = 0;

  /// Throws kInvalidArgument naming the option, the range and the value (NaN included).
  void validate() const;
};

/// Draws with a counter-based generator: the draw depends on (seed, row, position) only, never on
/// the machine, the batch or the order of calls.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  /// One row of logits [vocab] f32, all finite (kNonFinite otherwise). `row` and `position` number
  /// the draw. Repetition penalty first, then temperature, top-k, top-p, min-p; a greedy choice
  /// knows the penalty too. `history` are the ids so far, oldest first; not used without a penalty.
  std::int64_t sample(const at::Tensor& logits, std::uint64_t row, std::uint64_t position,
                      std::span<const std::int64_t> history = {}) const;

  bool needs_history() const { return options_.repetition_penalty != 1.0; }

 private:
  SamplingOptions options_;
};

/// Uniform in [0,1) with 53 bits: Philox4x32-10 (Salmon et al. 2011) of the key `seed` and the
/// counter (row, position).
double philox_uniform(std::uint64_t seed, std::uint64_t row, std::uint64_t position);

}  // namespace kda::model
