// One case through the public front door of one backend, in guarded and poisoned memory.
#pragma once

#include <map>
#include <memory>
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

// Scratch memory of exactly the size that a call asked for, filled with NaN, guarded. It can be
// gigabytes large, so only the guards ever visit the host.
class GuardedWorkspace {
 public:
  GuardedWorkspace(DeviceMemory& memory, std::size_t bytes);
  Workspace get() const;
  void poison();  // NaN again
  // What was written past either end; empty = nothing.
  std::string damage() const;

 private:
  DeviceMemory* memory_;
  std::shared_ptr<void> allocation_;  // guard, workspace, guard
  std::size_t size_;
};

struct RunResult {
  Outputs values;
  std::map<Quantity, std::vector<unsigned char>> bits;
  std::vector<std::string> faults;     // writes outside of outputs, changed inputs
  std::size_t kept_bytes = 0;          // what the forward kept (RunOptions::keep_factors)
  std::size_t backward_workspace = 0;  // bytes that the backward asked for
  std::string unsupported;             // the refusal's text; then there are no values
};

struct RunOptions {
  bool forward = true;
  bool backward = true;
  bool give_workspace = true;           // false: host backends allocate
  std::size_t workspace_shortfall = 0;  // bytes less than the call asked for
  bool keep_bits = false;
  bool keep_factors = false;                // hand the forward's factors to the backward
  bool spoil_kept_factors = false;          // and overwrite them in between
  std::optional<Quantity> only_gradient{};  // ask the backward for this one alone
};

RunResult run_chunk(const TestBackend& backend, const Case& c, const CaseData& data,
                    const RunOptions& options = {});

// The recurrent operator on the same inputs (forward only, no pool).
RunResult run_recurrent(const TestBackend& backend, const Case& c, const CaseData& data,
                        const RunOptions& options = {});

}  // namespace kda::test
