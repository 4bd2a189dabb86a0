// A straightforward computation with 16-bit operands: what a backend whose matrix products take
// bf16 operands cannot be expected to beat.
#pragma once

#include "support/oracle.h"

namespace kda::test {

// The chunked form in chunks of 64 with w and u in place of the state's products, forward and
// backward, in double, except that everything such a computation stores or multiplies in 16 bits
// is rounded there: unit q and k, the decayed keys and queries, A, A_qk, beta v, beta k, u, w, the
// new values, the state as an operand, and in the backward dS as an operand, dv, dw, dA. These are
// the rounding points of the ecosystem's chunk kernels; the inverse, sums and states are exact
// here, so errors are what the operands' rounding and the problem's conditioning make of it.
//
// The rounding is bf16 for every io type: the diagonal factors span 2^+-115 and A, states and
// gradients are unbounded, which f16 operands could not hold.
// Another type is for tests of the model: with f64 nothing is rounded.
Outputs half_operand_model(const Case& c, const CaseData& data, const OracleOptions& options,
                           DType operand = DType::kBF16);

}  // namespace kda::test
