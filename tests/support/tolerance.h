// The one tolerance table of the project, and the comparison that uses it.
#pragma once

#include <string>

#include "support/cases.h"
#include "support/quantity.h"
#include "support/test_backends.h"

namespace kda::test {

// An error e against the double oracle passes when
//   rms(e) <= rms * rms(expected) + noise * natural scale          (absolute limits)
//   max|e| <= max * max|expected| + 16 * noise * natural scale
// and, where a straightforward computation in the same precision (the ref backend on the same
// dtypes) is at hand,
//   rms(e) <= max(1.25 * its rms error, floor * rms(expected) + noise * natural scale).
// With 16-bit operands the straightforward computation is half_operand_model, and the bound is the
// larger of both: where operands rounded to 16 bits cannot meet the absolute limits (nearly equal
// keys with beta near 1 or 2, where A = (I + Lo)^-1 cancels), 1.25 times that computation's error
// is what is asked for, and the largest error may grow in the same proportion.
struct Tolerance {
  double rms;
  double max;
  double noise;
  double floor;
};

Tolerance tolerance_of(Quantity quantity, DType io, Arithmetic arithmetic);

// One comparison; the names only label messages and the report.
struct Comparison {
  const TestBackend* backend = nullptr;
  std::string case_name;
  Quantity quantity = Quantity::kO;
  double natural_scale = 0.0;                   // 0: rms(expected)
  const HostTensor* straightforward = nullptr;  // same precision, obvious code; may be absent
};

// Adds a GoogleTest failure that says what is off, where and by how much.
void expect_close(const Comparison& comparison, const HostTensor& expected,
                  const HostTensor& given);

// All quantities of a case that `given` has. `straightforward` may be null.
void expect_all_close(const TestBackend& backend, const Case& c, const CaseData& data,
                      const Outputs& expected, const Outputs& given,
                      const Outputs* straightforward);

}  // namespace kda::test
