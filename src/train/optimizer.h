/// AdamW with decoupled decay, gradient statistics and clipping, over fp32 parameters.
///
/// Math, for update t = 1, 2, ..., g the scaled gradient, per element:
///   m = b1 m + (1-b1) g        v = b2 v + (1-b2) g^2
///   p = p - lr * wd * p
///   p = p - lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
/// Source: Loshchilov, Hutter, "Decoupled weight decay regularization" (arXiv 1711.05101).
/// Every element is computed by the same operations whatever the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/parameter.h"

namespace kda::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< of matrices, embeddings and heads; the other kinds have none
};

/// What all gradients together look like.
struct GradientStats {
  double norm = 0;  ///< Euclidean, over all parameters; of the unscaled gradients
  /// Parameters whose gradient has a NaN or infinity, and the one of them that is nearest to the
  /// loss: backward reached it first.
  std::int64_t num_nonfinite = 0;
  std::string nearest_nonfinite;
};

class AdamW {
 public:
  /// Parameters are f32 and contiguous, and outlive nothing: the tensors are shared. Throws
  /// kUnsupported for another dtype. Moments start at zero.
  AdamW(std::vector<model::Parameter> parameters, const AdamWOptions& options);

  /// Norm in double by fixed blocks: the same bits for any number of threads. A parameter without a
  /// gradient counts as zero.
  GradientStats gradient_stats() const;

  /// One update with gradients multiplied by `gradient_scale` (clipping, token weighting). A
  /// parameter without a gradient is updated as with a zero gradient.
  void step(double lr, double gradient_scale);

  /// Drops the gradients, so that the next backward pass writes instead of adding.
  void clear_gradients();

  std::int64_t updates() const { return updates_; }
  const std::vector<model::Parameter>& parameters() const { return parameters_; }
  bool decays(std::size_t parameter) const;

  /// The state by name: "exp_avg.<parameter>", "exp_avg_sq.<parameter>". The tensors share memory
  /// with the optimizer: copy bytes into them and call `set_updates` to restore.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  void set_updates(std::int64_t updates) { updates_ = updates; }

  std::int64_t state_bytes() const;

 private:
  struct Block;  ///< a run of elements of one parameter: the unit of parallel work
  std::vector<Block> blocks() const;

  AdamWOptions options_;
  std::vector<model::Parameter> parameters_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  std::int64_t updates_ = 0;
};

/// Factor that brings `norm` down to `clip`: min(1, clip / norm); 1 when clip is 0.
double clip_scale(double norm, double clip);

}  // namespace kda::train
