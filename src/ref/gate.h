// The decay gate: scalar formulas and the three gate operators.
#pragma once

#include <cmath>

#include "core/problem.h"
#include "kda/ops/gate.h"
#include "ref/element.h"

namespace kda::ref {

template <typename Real>
Real sigmoid(Real z) {
  return Real(1) / (Real(1) + std::exp(-z));
}

// log(1 + e^z) without overflow. It equals z to rounding from z = 20 on.
template <typename Real>
Real softplus(Real z) {
  return std::max(z, Real(0)) + std::log1p(std::exp(-std::abs(z)));
}

// The gate of one channel (hv, k), ready to be applied to pre-activations.
template <typename Real>
struct GateChannel {
  Real exp_a = 1;  // exp(a_log), 1 where a_log is absent
  Real bias = 0;
  bool safe = false;
  Real lower_bound = 0;

  // standard: -e^A softplus(x + b);  safe: L sigmoid(e^A (x + b))
  Real value(Real x) const {
    const Real z = x + bias;
    return safe ? lower_bound * sigmoid(exp_a * z) : -exp_a * softplus(z);
  }

  // Derivatives with respect to x (and b), and with respect to A.
  struct Slopes {
    Real dx;
    Real da_log;
  };
  Slopes slopes(Real x) const {
    const Real z = x + bias;
    if (!safe) return {-exp_a * sigmoid(z), -exp_a * softplus(z)};
    const Real az = exp_a * z;
    // 1 - sigmoid(az) = sigmoid(-az), which keeps its digits where the gate saturates.
    const Real dx = lower_bound * sigmoid(az) * sigmoid(-az) * exp_a;
    return {dx, dx * z};
  }
};

template <typename Real>
GateChannel<Real> gate_channel(const GateParams& gate, std::int64_t hv, std::int64_t k) {
  GateChannel<Real> channel;
  if (gate.a_log.defined()) channel.exp_a = std::exp(load<Real>(gate.a_log, hv));
  if (gate.dt_bias.defined()) channel.bias = load<Real>(gate.dt_bias, hv, k);
  channel.safe = gate.lower_bound_ln.has_value();
  channel.lower_bound = static_cast<Real>(gate.lower_bound_ln.value_or(0.0));
  return channel;
}

template <typename Real>
void gate_forward(const GateForwardParams& params, const core::Problem& problem);
template <typename Real>
void gate_backward(const GateBackwardParams& params, const core::Problem& problem);
template <typename Real>
void gate_cumsum_forward(const GateCumsumForwardParams& params, const core::Problem& problem);

}  // namespace kda::ref
