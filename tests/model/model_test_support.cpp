#include "model/model_test_support.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "support/record.h"

namespace kda::test {

void check_gradients(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& f,
    std::vector<at::Tensor> inputs, double tolerance) {
  for (at::Tensor& input : inputs) {
    ASSERT_EQ(input.scalar_type(), at::kDouble);
    input = input.detach().clone();
    input.set_requires_grad(true);
  }
  std::vector<at::Tensor> weights;
  const auto loss = [&] {
    const std::vector<at::Tensor> outputs = f(inputs);
    at::Tensor total;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (weights.size() <= i) weights.push_back(random_tensor(outputs[i].sizes(), 900 + i));
      const at::Tensor part = (outputs[i] * weights[i]).sum();
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  torch::autograd::backward({loss()}, {});
  const c10::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  double worst = 0.0;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    ASSERT_TRUE(inputs[n].grad().defined()) << "input " << n << " got no gradient";
    const at::Tensor gradient = inputs[n].grad().contiguous();
    double* values = inputs[n].mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < inputs[n].numel(); ++i) {
      const double saved = values[i];
      values[i] = saved + kStep;
      const double above = loss().item<double>();
      values[i] = saved - kStep;
      const double below = loss().item<double>();
      values[i] = saved;
      const double numeric = (above - below) / (2 * kStep);
      const double analytic = gradient.const_data_ptr<double>()[i];
      worst = std::max(worst, std::abs(analytic - numeric) / std::max(1.0, std::abs(numeric)));
      ASSERT_LE(std::abs(analytic - numeric), tolerance * std::max(1.0, std::abs(numeric)))
          << "input " << n << ", element " << i << ": analytic " << analytic << ", numeric "
          << numeric;
    }
  }
  record_difference(worst);
}

}  // namespace kda::test
