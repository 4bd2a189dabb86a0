// One case through the public front door of one backend, in guarded and poisoned memory.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kda/ops/chunk.h"
#include "support/cases.h"
#include "support/quantity.h"
#include "support/test_backends.h"

namespace kda::test {

// A case's inputs in a backend's memory.
struct DeviceInputs {
  DeviceTensor q, k, v, g, a_log, dt_bias, beta, state0, cu, d_o, d_final_state;

  DeviceInputs(const TestBackend& backend, const Case& c, const CaseData& data);

  // The inputs of a call; the views point into the tensors above.
  OperatorInputs operator_inputs(const Case& c) const;
  // Names of inputs that a call has written to; empty = none.
  std::string changed() const;
};

// Scratch memory of exactly the size that a call asked for, filled with NaN, guarded.
class GuardedWorkspace {
 public:
  GuardedWorkspace(DeviceMemory& memory, std::size_t bytes);
  Workspace get() const;
  std::string damage() const { return bytes_.damage(); }

 private:
  DeviceTensor bytes_;
  std::size_t size_ = 0;
};

struct RunResult {
  Outputs values;
  std::map<Quantity, std::vector<unsigned char>> bits;
  std::vector<std::string> faults;  // writes outside of outputs, changed inputs
  std::string unsupported;          // the refusal's text; then there are no values
};

struct RunOptions {
  bool forward = true;
  bool backward = true;
  bool give_workspace = true;           // false: host backends allocate
  std::size_t workspace_shortfall = 0;  // bytes less than the call asked for
  bool keep_bits = false;
  std::optional<Quantity> only_gradient{};  // ask the backward for this one alone
};

RunResult run_chunk(const TestBackend& backend, const Case& c, const CaseData& data,
                    const RunOptions& options = {});

// The recurrent operator on the same inputs (forward only, no pool).
RunResult run_recurrent(const TestBackend& backend, const Case& c, const CaseData& data,
                        const RunOptions& options = {});

}  // namespace kda::test
