#include "train/accumulation.h"

#include <ATen/ops/stack.h>

#include <cmath>

namespace kda::train {

void AccumulationWindow::add(const model::LossOutput& loss, std::int64_t reference_tokens) {
  if (loss.num_tokens == 0) return;  // nothing to learn from, and no gradient to ask for
  loss.loss_sum.div(static_cast<double>(reference_tokens)).backward();
  unsettled.push_back(loss.loss_sum.detach());
  targets += loss.num_tokens;
}

std::optional<std::size_t> AccumulationWindow::settle() {
  std::optional<std::size_t> bad;
  if (unsettled.empty()) return bad;
  const at::Tensor values = at::stack(unsettled).to(at::kCPU, at::kDouble).contiguous();
  unsettled.clear();
  const double* losses = values.const_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    if (!std::isfinite(losses[i]) && !bad) bad = static_cast<std::size_t>(i);
    loss_sum += losses[i];
  }
  return bad;
}

double AccumulationWindow::mean_loss() const { return loss_sum / static_cast<double>(targets); }

double AccumulationWindow::gradient_scale(std::int64_t reference_tokens) const {
  return static_cast<double>(reference_tokens) / static_cast<double>(targets);
}

}  // namespace kda::train
