/// What all optimizers share: parameters, gradient statistics, state by name.
///
/// Parameters are f32 and contiguous, all on the host or all on one GPU, and share memory with the
/// model. On a GPU everything runs there in a few fused launches; the host waits once a step, for
/// the gradient norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/parameter.h"

namespace kda::train {

/// What all gradients together look like.
struct GradientStats {
  double norm = 0;  ///< Euclidean, over all parameters; of the unscaled gradients
  /// Parameters whose gradient has a NaN or infinity, and the one of them that is nearest to the
  /// loss: backward reached it first.
  std::int64_t num_nonfinite = 0;
  std::string nearest_nonfinite;
};

class Optimizer {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Throws kUnsupported for a dtype other than f32, for parameters on several devices and for
  /// memory that is not contiguous.
  explicit Optimizer(std::vector<model::Parameter> parameters);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Norm in double with a fixed order of additions: the same bits for any number of threads, and
  /// from run to run on a GPU. A parameter without a gradient counts as zero.
  GradientStats gradient_stats() const;

  /// One update with gradients multiplied by `gradient_scale` (clipping, token weighting). A
  /// parameter without a gradient is updated as with a zero gradient. May change the gradients.
  void step(double lr, double gradient_scale);

  /// Drops the gradients, so that the next backward pass writes instead of adding.
  void clear_gradients();

  std::int64_t updates() const { return updates_; }
  virtual void set_updates(std::int64_t updates) { updates_ = updates; }
  const std::vector<model::Parameter>& parameters() const { return parameters_; }

  /// The state by name, e.g. "exp_avg.<parameter>". The tensors share memory with the optimizer:
  /// copy into them and call `set_updates` to restore.
  virtual NamedTensors state() const = 0;
  std::int64_t state_bytes() const;

  /// One line for people: "adamw (158 tensors)".
  virtual std::string description() const = 0;

 protected:
  virtual void update(double lr, double gradient_scale) = 0;

 private:
  std::vector<model::Parameter> parameters_;
  std::int64_t updates_ = 0;
};

/// The gradient, or zeros in its place.
at::Tensor gradient_or_zeros(const model::Parameter& parameter);

struct OptimizerOptions {
  std::string kind = "adamw";  ///< "adamw" or "muon"
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.95;  ///< of Muon
};

/// Throws kInvalidArgument for an unknown kind.
std::unique_ptr<Optimizer> make_optimizer(std::vector<model::Parameter> parameters,
                                          const OptimizerOptions& options);

/// Bytes of state that `make_optimizer` will hold, without making it.
std::int64_t optimizer_state_bytes(const std::vector<model::Parameter>& parameters,
                                   const std::string& kind);

/// Factor that brings `norm` down to `clip`: min(1, clip / norm); 1 when clip is 0.
double clip_scale(double norm, double clip);

}  // namespace kda::train
