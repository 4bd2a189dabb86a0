/// Initial weights.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/parameter.h"

namespace kda::model {

/// Fills a parameter in place. The numbers depend on (seed, parameter name, element) only.
///   matrices, experts, embedding, head: N(0, initializer_range); the embedding row of pad_id is 0
///   pseudo-queries and routing biases: 0 (attention residuals start as plain means)
///   norms: 1;   convolutions: U(-1/sqrt(W), 1/sqrt(W))
///   A_log: 0 with the safe gate, log U(1,16) with the standard gate
///   dt_bias: inverse softplus of delta = exp(U(log 0.001, log 0.1)), at least 1e-4
/// Sources: docs/model.md, section "Initial weights".
void initialise(const Parameter& parameter, const KDAConfig& config, std::uint64_t seed);

}  // namespace kda::model
