/// A quick check that the operator's backends agree on this machine, and the operands for timing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kda/backend.h"
#include "kda/ops/chunk.h"

namespace kda::cli {

/// Operands of one dense call with random contents, owned.
class OperatorCase {
 public:
  struct Shape {
    std::int64_t batch, tokens, heads, key_dim, value_dim;
  };
  explicit OperatorCase(const Shape& shape);

  /// Safe gate, logits for beta, normalised queries and keys: what the model uses.
  OperatorInputs inputs() const;

  void forward(Backend backend, bool keep_states);
  void backward(Backend backend, bool use_states);
  /// One token per row on a pool of states.
  void decode(Backend backend);

  std::int64_t num_tokens() const { return shape_.batch * shape_.tokens; }
  const std::vector<float>& output() const { return o_; }
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }

 private:
  Shape shape_;
  std::vector<float> q_, k_, v_, g_, beta_, a_log_, dt_bias_, d_o_;
  std::vector<float> o_, h_, final_state_, pool_;
  std::vector<std::int64_t> slots_;
  std::vector<std::vector<float>> gradients_;  ///< q, k, v, g, beta, a_log, dt_bias
};

struct SelfTestResult {
  bool ran = false;
  std::string skipped;        ///< why not, when it did not run
  double output_error = 0;    ///< largest difference / largest value, against the reference
  double gradient_error = 0;  ///< the worst of the seven gradients
  bool passed = false;
};

/// Compares `backend` with the reference on a small case, forward and backward, in fp32.
SelfTestResult self_test(Backend backend);

}  // namespace kda::cli
