/// Choosing the next token from logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kda::model {

struct SamplingOptions {
  double temperature = 0.0;  ///< 0: greedy (lowest id among equals); else > 0 and finite
  std::int64_t top_k = 0;    ///< 0: off; larger than the vocabulary: off
  double top_p = 1.0;        ///< in (0,1]; the best token is always kept
  std::uint64_t seed = 0;

  /// Throws kInvalidArgument naming the option, the range and the value (NaN included).
  void validate() const;
};

/// Draws with a counter-based generator: the draw depends on (seed, row, position) only, never on
/// the machine, the batch or the order of calls.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  /// One row of logits [vocab] f32 on the host, all finite (kNonFinite otherwise). `row` and
  /// `position` number the draw. Temperature first, then top-k, then top-p.
  std::int64_t sample(const at::Tensor& logits, std::uint64_t row, std::uint64_t position) const;

 private:
  SamplingOptions options_;
};

/// Uniform in [0,1) with 53 bits: Philox4x32-10 (Salmon et al. 2011) of the key `seed` and the
/// counter (row, position).
double philox_uniform(std::uint64_t seed, std::uint64_t row, std::uint64_t position);

}  // namespace kda::model
