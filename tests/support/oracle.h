// What a case must give: the token recurrence in double, on the rounded inputs.
#pragma once

#include "kda/ops/chunk.h"
#include "support/cases.h"
#include "support/quantity.h"

namespace kda::test {

struct OracleOptions {
  bool forward = true;
  bool backward = true;
};

Outputs oracle(const Case& c, const CaseData& data, const OracleOptions& options = {});

// The case's inputs as views of the doubles in `data`; both must outlive the result.
OperatorInputs f64_inputs(const Case& c, const CaseData& data);

// Every gradient of a case requested, written to new tensors in `out`.
ChunkBackwardParams f64_backward_params(const Case& c, const CaseData& data, Outputs* out);

}  // namespace kda::test
