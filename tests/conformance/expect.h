// What every conformance test does with the result of a run.
#pragma once

#include <gtest/gtest.h>

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

// The ref backend on the same dtypes is the "straightforward computation in the same precision" of
// backends that compute in f32. The ref backend itself and f64 have only absolute limits; so have
// backends with 16-bit operands, whose rounding it does not have.
inline bool compare_with_straightforward(const TestBackend& backend) {
  return backend.backend != Backend::kRef && backend.arithmetic == Arithmetic::kF32;
}

inline TestBackend straightforward_of(const TestBackend& backend) {
  return {"straightforward", Backend::kRef, backend.io, Arithmetic::kF32, &host_memory()};
}

}  // namespace kda::test
