// What the gate and norm kernels are given: blocks of tokens, and the gate of every value head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "cpu/chunk_call.h"

namespace kda::cpu {

// Tokens per task. Fixed, so that sums over tokens are formed in the same order by any number of
// threads.
inline constexpr std::int64_t kTokensPerTask = 128;

struct TokenRange {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

inline std::int64_t blocks_per_row(const Dims& d) {
  return (d.T + kTokensPerTask - 1) / kTokensPerTask;
}
inline std::int64_t token_tasks(const Dims& d) { return d.B * blocks_per_row(d); }
inline TokenRange token_range(const Dims& d, std::int64_t task) {
  const std::int64_t begin = task % blocks_per_row(d) * kTokensPerTask;
  return {task / blocks_per_row(d), begin, std::min(kTokensPerTask, d.T - begin)};
}

struct GateCall {
  Dims dims;
  std::size_t k = 0;
  std::size_t width = 0;  // floats per row in scratch: K rounded up to whole vectors and lines
  std::vector<float> bias;
  std::vector<HeadGate> heads;

  TokenRange tokens(std::int64_t task) const { return token_range(dims, task); }
};

inline GateCall make_gate_call(const GateParams& gate, const core::Problem& p, std::size_t width) {
  GateCall call;
  call.dims = p.dims;
  call.k = static_cast<std::size_t>(p.dims.K);
  call.width = width;
  call.bias.resize(width * static_cast<std::size_t>(p.dims.HV));
  for (std::int64_t hv = 0; hv < p.dims.HV; ++hv) {
    float* bias = call.bias.data() + static_cast<std::size_t>(hv) * width;
    call.heads.push_back(head_gate(gate, p.raw_gate, hv, call.k, width, bias));
  }
  return call;
}

}  // namespace kda::cpu
