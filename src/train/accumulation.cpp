#include "train/accumulation.h"

namespace kda::train {

void AccumulationWindow::add(const model::LossOutput& loss, double loss_value,
                             std::int64_t reference_tokens) {
  if (loss.num_tokens == 0) return;  // nothing to learn from, and no gradient to ask for
  loss.loss_sum.div(static_cast<double>(reference_tokens)).backward();
  loss_sum += loss_value;
  targets += loss.num_tokens;
}

double AccumulationWindow::mean_loss() const { return loss_sum / static_cast<double>(targets); }

double AccumulationWindow::gradient_scale(std::int64_t reference_tokens) const {
  return static_cast<double>(reference_tokens) / static_cast<double>(targets);
}

}  // namespace kda::train
