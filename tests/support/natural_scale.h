// How large a result's terms are, where the result itself may be a small difference of them.
#pragma once

#include "support/cases.h"
#include "support/quantity.h"

namespace kda::test {

// At least rms(expected[quantity]). Rounding cannot be asked to be smaller than a few ulps of this:
// with g = -1000 everywhere, for example, dg is exactly 0, but any implementation that gets it from
// q dq + k dk terms leaves their rounding there.
double natural_scale(Quantity quantity, const Case& c, const CaseData& data,
                     const Outputs& expected);

}  // namespace kda::test
