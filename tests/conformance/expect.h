// What every conformance test does with the result of a run.
#pragma once

#include <gtest/gtest.h>

#include "support/half_model.h"
#include "support/run.h"
#include "support/test_backends.h"

// A refusal (its text, empty = served) is a failure for a backend that serves everything, else a
// skip that says why.
#define KDA_SKIP_IF_REFUSED(backend, refusal)                                  \
  if (const std::string& text = (refusal); !text.empty()) {                    \
    if ((backend).serves_everything) FAIL() << (backend).name << ": " << text; \
    GTEST_SKIP() << text;                                                      \
  }

namespace kda::test {

inline void expect_no_faults(const RunResult& result) {
  for (const std::string& fault : result.faults)
    ADD_FAILURE() << fault;
}

// The "straightforward computation in the same precision": the ref backend on the same dtypes for
// backends that compute in f32, and for the chunked operator a model of the operands' rounding for
// those with 16-bit operands. The ref backend itself and f64 have only absolute limits.
inline bool compare_with_straightforward(const TestBackend& backend) {
  return backend.backend != Backend::kRef && backend.arithmetic != Arithmetic::kF64;
}

inline TestBackend straightforward_of(const TestBackend& backend) {
  return {"straightforward", Backend::kRef, backend.io, Arithmetic::kF32, &host_memory()};
}

// Of two results, quantity by quantity, the one farther from what is expected.
inline Outputs farther_of(const Outputs& expected, Outputs a, const Outputs& b) {
  const auto distance = [](const HostTensor& x, const HostTensor& y) {
    double sum = 0.0;
    for (std::size_t i = 0; i < x.data.size(); ++i)
      sum += (x.data[i] - y.data[i]) * (x.data[i] - y.data[i]);
    return sum;
  };
  for (auto& [quantity, value] : a) {
    const HostTensor& other = b.at(quantity);
    if (distance(expected.at(quantity), other) > distance(expected.at(quantity), value)) {
      value = other;
    }
  }
  return a;
}

// The same for the chunked operator. The CUDA backend works in chunks of 64 whatever the call says,
// so it is not held to the error of a shorter chunk, with which less cancels when beta is near 2.
// There the error of any f32 computation has few degrees of freedom (one amplified direction), and
// two equally good ones differ by a factor of two on the same data: both chunks of 64 and of 128
// count as straightforward.
inline Outputs straightforward_chunk(const TestBackend& backend, Case c, const CaseData& data,
                                     const RunOptions& options, const Outputs& expected) {
  if (backend.arithmetic == Arithmetic::kHalfOperands) {
    return half_operand_model(c, data, {options.forward, options.backward});
  }
  const TestBackend plain = straightforward_of(backend);
  if (backend.backend != Backend::kCuda) return run_chunk(plain, c, data, options).values;
  c.chunk = 64;
  const Outputs once = run_chunk(plain, c, data, options).values;
  c.chunk = 128;
  return farther_of(expected, once, run_chunk(plain, c, data, options).values);
}

}  // namespace kda::test
