// Which calls the fused kernels serve. Everything else takes the portable ones.
#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <optional>
#include <string>

#include "cuda/convert.h"
#include "cuda/hopper/scan.h"
#include "cuda/hopper/segment_rule.h"

namespace kda::cuda::hopper {
namespace {

std::atomic<bool> g_enabled{true};
std::atomic<bool> g_segments{true};
std::atomic<bool> g_standard_gate{true};

// A bounded gate loses at most 16 x 7.22 log2 per 16 tokens: 2^115 and its inverse are finite.
constexpr double kLowestBound = -5.0;

std::string head_text(const Dims& d) {
  return "K=" + std::to_string(d.K) + ", V=" + std::to_string(d.V);
}

// What speaks against both directions.
std::string common_reason(const OperatorInputs& in, const core::Problem& problem) {
  if (!enabled()) return "switched off for this process";
  const DeviceSupport device = device_support();
  if (!device.built) return "this build has no code for sm_90a";
  if (device.major == 0) return "there is no CUDA device";
  if (device.major != 9) {
    return "it needs compute capability 9.0, the device has " + std::to_string(device.major) + "." +
           std::to_string(device.minor);
  }
  if (problem.io != DType::kBF16) return "it needs bf16 tensors";
  const Dims& d = problem.dims;
  if (d.K != d.V || (d.K != 64 && d.K != 128)) {
    return "it needs K = V = 64 or 128, given " + head_text(d);
  }
  if (!problem.raw_gate) return "it needs a raw gate";
  const std::optional<double>& bound = in.gate.lower_bound_ln;
  if (!bound.has_value() && !g_standard_gate.load())
    return "standard gates are switched off for this process";
  if (bound.has_value() && *bound < kLowestBound) return "it needs a lower bound of at least -5";
  if (!in.qk_l2norm) return "it needs qk_l2norm: keys of any length could overflow 2^115";
  return {};
}

struct NamedRows {
  const char* name;
  ConstTensorView view;
};
std::string rows_reason(std::initializer_list<NamedRows> all) {
  for (const NamedRows& rows : all) {
    if (rows.view.defined() && !is_plain(to_tensor(rows.view))) {
      return std::string(rows.name) + ": it needs 16-byte aligned rows of bf16";
    }
  }
  return {};
}

}  // namespace

std::int64_t cut_sequences(const core::Problem& problem) {
  const Dims& d = problem.dims;
  if (!g_segments.load() || most_segments(d.HV, d.K) == 1) return 0;
  if (!problem.packed) return d.T >= kCutFromTokens ? d.N : 0;
  if (problem.offsets_on_device) return std::min(d.N, d.T / kCutFromTokens);
  std::int64_t cuts = 0;
  for (std::int64_t n = 0; n < d.N; ++n)
    cuts += problem.sequence(n).length >= kCutFromTokens ? 1 : 0;
  return cuts;
}

void set_enabled(bool enabled) { g_enabled.store(enabled); }
bool enabled() { return g_enabled.load(); }
void set_segments(bool enabled) { g_segments.store(enabled); }
void set_standard_gate(bool enabled) { g_standard_gate.store(enabled); }

bool retries_chunks(const ChunkBackwardParams& params) {
  return !params.in.gate.lower_bound_ln.has_value();
}

std::string forward_reason_against(const ChunkForwardParams& params, const core::Problem& problem) {
  const OperatorInputs& in = params.in;
  std::string reason = common_reason(in, problem);
  if (reason.empty()) {
    reason =
        rows_reason({{"q", in.q}, {"k", in.k}, {"v", in.v}, {"g_raw", in.g_raw}, {"o", params.o}});
  }
  if (reason.empty() && params.h_kv.defined() && params.h_kv.dtype != DType::kBF16) {
    reason = "h_kv: it writes bf16 states";
  }
  return reason;
}

std::string backward_reason_against(const ChunkBackwardParams& params,
                                    const core::Problem& problem) {
  const OperatorInputs& in = params.in;
  std::string reason = common_reason(in, problem);
  if (reason.empty()) {
    reason = rows_reason({{"q", in.q},
                          {"k", in.k},
                          {"v", in.v},
                          {"g_raw", in.g_raw},
                          {"h_kv", params.h_kv},
                          {"d_o", params.d_o},
                          {"dq", params.dq},
                          {"dk", params.dk},
                          {"dv", params.dv},
                          {"dg", params.dg}});
  }
  if (reason.empty() && !params.h_kv.defined()) reason = "it needs the forward's states, h_kv";
  return reason;
}

}  // namespace kda::cuda::hopper
