#include "model/new_parameter.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <numeric>

namespace kda::model {

at::Tensor new_parameter(at::IntArrayRef shape, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty(shape, options);
  tensor.set_requires_grad(true);
  return tensor;
}

std::vector<at::Tensor> new_neighbours(const std::vector<std::int64_t>& rows, std::int64_t columns,
                                       const at::TensorOptions& options) {
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const at::Tensor block = at::empty({total, columns}, options);
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  for (const std::int64_t count : rows) {
    at::Tensor part = block.narrow(0, row, count).detach();
    part.set_requires_grad(true);
    parts.push_back(part);
    row += count;
  }
  return parts;
}

}  // namespace kda::model
