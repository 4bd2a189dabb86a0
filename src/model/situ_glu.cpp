#include "model/situ_glu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "model/tensors.h"

namespace kda::model {
namespace {

// cap(x) and its slope; without a cap x itself and 1.
struct Capped {
  at::Tensor value, slope;
};

Capped capped(const at::Tensor& x, double cap) {
  if (cap <= 0) return {x, at::ones({}, x.options())};
  const at::Tensor t = at::tanh(x / cap);
  return {t * cap, 1 - t * t};
}

}  // namespace

at::Tensor situ_glu_composed(const at::Tensor& gate, const at::Tensor& up, const SituBetas& betas) {
  const at::ScalarType island = island_type_of(gate.scalar_type());
  const at::Tensor g = gate.to(island);
  const at::Tensor left = capped(g, betas.gate).value * at::sigmoid(g);
  return (left * capped(up.to(island), betas.linear).value).to(gate.scalar_type());
}

void situ_glu_backward_composed(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dy,
                                const SituBetas& betas, at::Tensor dgate, at::Tensor dup) {
  const at::ScalarType island = island_type_of(gate.scalar_type());
  const at::Tensor g = gate.to(island);
  const at::Tensor grad = dy.to(island);
  const at::Tensor s = at::sigmoid(g);
  const Capped cap_g = capped(g, betas.gate);
  const Capped cap_u = capped(up.to(island), betas.linear);
  const at::Tensor left = cap_g.value * s;
  dgate.copy_(grad * cap_u.value * (cap_g.slope * s + left * (1 - s)));
  dup.copy_(grad * left * cap_u.slope);
}

}  // namespace kda::model
