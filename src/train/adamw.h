/// AdamW with decoupled decay over fp32 parameters.
///
/// Math, for update t = 1, 2, ..., g the scaled gradient, per element:
///   m = b1 m + (1-b1) g        v = b2 v + (1-b2) g^2
///   p = p - lr * wd * p
///   p = p - lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
/// Source: Loshchilov, Hutter, "Decoupled weight decay regularization" (arXiv 1711.05101).
/// On the host every element is computed by the same operations whatever the number of threads; on
/// a GPU torch's fused kernel takes all parameters of a decay group in one launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/optimizer.h"

namespace kda::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< of matrices, embeddings and heads; the other kinds have none
};

class AdamW final : public Optimizer {
 public:
  /// Moments start at zero.
  AdamW(std::vector<model::Parameter> parameters, const AdamWOptions& options);

  bool decays(std::size_t parameter) const;

  /// "exp_avg.<parameter>", "exp_avg_sq.<parameter>".
  NamedTensors state() const override;
  std::string description() const override;

 protected:
  void update(double lr, double gradient_scale) override;

 private:
  void update_on_host(double lr, double gradient_scale);
  void update_on_device(double lr, double gradient_scale);

  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
};

}  // namespace kda::train
