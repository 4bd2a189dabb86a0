// The backends and element types that the conformance suite runs on.
#pragma once

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "kda/backend.h"
#include "kda/error.h"
#include "kda/types.h"
#include "support/device_memory.h"

namespace kda::test {

// How a backend computes, which decides the row of the tolerance table.
enum class Arithmetic : std::uint8_t {
  kF64,
  kF32,          // every product and sum in f32, inputs and outputs in any 16- or 32-bit type
  kHalfOperands  // matrix units: 16-bit operands, f32 accumulation
};

struct TestBackend {
  std::string name;  // "cpu_bf16"
  Backend backend = Backend::kRef;
  DType io = DType::kF32;
  Arithmetic arithmetic = Arithmetic::kF32;
  DeviceMemory* memory = nullptr;
  // A refusal (kUnsupported) of a case fails the test where true, skips it with the reason else.
  bool serves_everything = true;
};

// ref and cpu on the host, and what was added before the tests were instantiated.
std::vector<TestBackend> test_backends();

// For other test programs: call from a static initialiser. With `alone`, the host backends are
// left out (a device test program has no need to repeat them).
struct AddTestBackends {
  explicit AddTestBackends(std::vector<TestBackend> backends, bool alone = false);
};

// Runs `call`; the text of its refusal (kUnsupported), empty when it was served.
template <typename Call>
std::string refusal_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return error.what();
  }
  return {};
}

inline void PrintTo(const TestBackend& backend, std::ostream* os) { *os << backend.name; }

// GoogleTest's name of a parameter that is a backend, or a tuple of a backend and a case.
struct BackendName {
  template <typename Info>
  std::string operator()(const Info& info) const {
    if constexpr (requires { info.param.name; }) {
      return info.param.name;
    } else {
      return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
    }
  }
};

}  // namespace kda::test
