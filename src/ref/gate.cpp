#include "ref/gate.h"

#include <algorithm>
#include <numbers>

namespace kda::ref {

template <typename Real>
void gate_forward(const GateForwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  for (std::int64_t hv = 0; hv < d.HV; ++hv) {
    for (std::int64_t k = 0; k < d.K; ++k) {
      const GateChannel<Real> gate = gate_channel<Real>(params.gate, hv, k);
      for (std::int64_t b = 0; b < d.B; ++b) {
        for (std::int64_t t = 0; t < d.T; ++t) {
          store(params.g_ln, gate.value(load<Real>(params.g_raw, b, t, hv, k)), b, t, hv, k);
        }
      }
    }
  }
}

template <typename Real>
void gate_backward(const GateBackwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  for (std::int64_t hv = 0; hv < d.HV; ++hv) {
    Real da_log = 0;
    for (std::int64_t k = 0; k < d.K; ++k) {
      const GateChannel<Real> gate = gate_channel<Real>(params.gate, hv, k);
      Real d_dt_bias = 0;  // summed before dg_raw is rounded to its own dtype
      for (std::int64_t b = 0; b < d.B; ++b) {
        for (std::int64_t t = 0; t < d.T; ++t) {
          const auto slopes = gate.slopes(load<Real>(params.g_raw, b, t, hv, k));
          const Real dg_ln = load<Real>(params.dg_ln, b, t, hv, k);
          da_log += dg_ln * slopes.da_log;
          d_dt_bias += dg_ln * slopes.dx;
          if (params.dg_raw.defined()) store(params.dg_raw, dg_ln * slopes.dx, b, t, hv, k);
        }
      }
      if (params.d_dt_bias.defined()) store(params.d_dt_bias, d_dt_bias, hv, k);
    }
    if (params.da_log.defined()) store(params.da_log, da_log, hv);
  }
}

template <typename Real>
void gate_cumsum_forward(const GateCumsumForwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  const ConstTensorView& g = problem.raw_gate ? params.g_raw : params.g_ln;
  for (std::int64_t hv = 0; hv < d.HV; ++hv) {
    for (std::int64_t k = 0; k < d.K; ++k) {
      const GateChannel<Real> gate =
          problem.raw_gate ? gate_channel<Real>(params.gate, hv, k) : GateChannel<Real>{};
      for (std::int64_t n = 0; n < d.N; ++n) {
        const core::Sequence sequence = problem.sequence(n);
        Real sum = 0;
        for (std::int64_t t = 0; t < sequence.length; ++t) {
          if (t % problem.chunk == 0) sum = 0;
          const std::int64_t at = sequence.begin + t;
          const Real x = load<Real>(g, sequence.row, at, hv, k);
          sum += problem.raw_gate ? gate.value(x) : x;
          store(params.gcum_log2, sum * std::numbers::log2e_v<Real>, sequence.row, at, hv, k);
        }
      }
    }
  }
}

#define KDA_REF_INSTANTIATE(Real)                                                     \
  template void gate_forward<Real>(const GateForwardParams&, const core::Problem&);   \
  template void gate_backward<Real>(const GateBackwardParams&, const core::Problem&); \
  template void gate_cumsum_forward<Real>(const GateCumsumForwardParams&, const core::Problem&);
KDA_REF_INSTANTIATE(float)
KDA_REF_INSTANTIATE(double)
#undef KDA_REF_INSTANTIATE

}  // namespace kda::ref
