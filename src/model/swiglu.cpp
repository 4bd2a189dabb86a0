#include "model/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "model/gated_activation.h"
#include "model/tensors.h"

namespace kda::model {

at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType island = island_type_of(gate.scalar_type());
  return (at::silu(gate.to(island)) * up.to(island)).to(gate.scalar_type());
}

void swiglu_backward_composed(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dy,
                              at::Tensor dgate, at::Tensor dup) {
  const at::ScalarType island = island_type_of(gate.scalar_type());
  const at::Tensor g = gate.to(island);
  const at::Tensor grad = dy.to(island);
  const at::Tensor s = at::sigmoid(g);
  dgate.copy_(grad * up.to(island) * s * (1 + g * (1 - s)));
  dup.copy_(grad * g * s);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated_activation(gate, up, {});
}

}  // namespace kda::model
