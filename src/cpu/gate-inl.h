// The gate by itself: value, slopes and prefix sums over rows of K channels.
#include "cpu/chunk_factors-inl.h"
#include "cpu/gate_call.h"

#if defined(KDA_CPU_GATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_GATE_INL_H_
#undef KDA_CPU_GATE_INL_H_
#else
#define KDA_CPU_GATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// d g_ln / d g_raw (also d dt_bias) and d g_ln / d a_log of one vector of channels.
struct GateSlopes {
  Vec dx;
  Vec da_log;
};
HWY_INLINE GateSlopes gate_slopes(const HeadGate& gate, Vec x, std::size_t channel) {
  const Vec z = hn::Add(x, load(gate.bias + channel));
  if (gate.bounded) {
    const Vec slope = sigmoid_with_slope(hn::Mul(splat(gate.exp_a), z)).slope;
    const Vec dx = hn::Mul(splat(gate.lower_bound_ln * gate.exp_a), slope);
    return {dx, hn::Mul(dx, z)};
  }
  const Vec minus_a = splat(-gate.exp_a);
  return {hn::Mul(minus_a, sigmoid(z)), hn::Mul(minus_a, softplus(z))};
}

inline std::size_t gate_row_floats(std::size_t k) {
  return padded_row(k < kLanes ? kLanes : (k + kLanes - 1) / kLanes * kLanes);
}

inline void gate_forward_task(const GateForwardParams& params, const GateCall& call,
                              std::int64_t task, float* scratch) {
  const TokenRange at = call.tokens(task);
  for (std::int64_t hv = 0; hv < call.dims.HV; ++hv) {
    const HeadGate& gate = call.heads[static_cast<std::size_t>(hv)];
    const Rows x = rows_of(params.g_raw, at.row, at.begin, hv);
    const RowsOut g = rows_of(params.g_ln, at.row, at.begin, hv);
    for (std::int64_t t = 0; t < at.count; ++t) {
      load_rows(x.from(t), 1, call.k, call.width, scratch, call.width);
      for (std::size_t d = 0; d < call.width; d += kLanes) {
        store(decay_ln(gate, load(scratch + d), d), scratch + d);
      }
      store_rows(scratch, call.width, 1, call.k, g.from(t));
    }
  }
}

// `partial` gets this task's sums: [HV][width] of d_dt_bias, then [HV] of da_log.
inline void gate_backward_task(const GateBackwardParams& params, const GateCall& call,
                               std::int64_t task, float* scratch, float* partial) {
  const TokenRange at = call.tokens(task);
  float* x_row = scratch;
  float* dg_row = scratch + call.width;
  float* da_row = scratch + 2 * call.width;
  for (std::int64_t hv = 0; hv < call.dims.HV; ++hv) {
    const HeadGate& gate = call.heads[static_cast<std::size_t>(hv)];
    const Rows x = rows_of(params.g_raw, at.row, at.begin, hv);
    const Rows dg = rows_of(params.dg_ln, at.row, at.begin, hv);
    const RowsOut dx = rows_of(params.dg_raw, at.row, at.begin, hv);
    float* bias_sum = partial + static_cast<std::size_t>(hv) * call.width;
    fill_rows(bias_sum, call.width, 1, call.width, 0.0F);
    fill_rows(da_row, call.width, 1, call.width, 0.0F);
    for (std::int64_t t = 0; t < at.count; ++t) {
      load_rows(x.from(t), 1, call.k, call.width, x_row, call.width);
      load_rows(dg.from(t), 1, call.k, call.width, dg_row, call.width);
      for (std::size_t d = 0; d < call.width; d += kLanes) {
        const GateSlopes slopes = gate_slopes(gate, load(x_row + d), d);
        const Vec dg_v = load(dg_row + d);
        const Vec dx_v = hn::Mul(dg_v, slopes.dx);
        store(dx_v, x_row + d);
        store(hn::Add(load(bias_sum + d), dx_v), bias_sum + d);
        store(hn::MulAdd(dg_v, slopes.da_log, load(da_row + d)), da_row + d);
      }
      if (dx.defined()) store_rows(x_row, call.width, 1, call.k, dx.from(t));
    }
    Vec sum = zero();
    for (std::size_t d = 0; d < call.width; d += kLanes)
      sum = hn::Add(sum, load(da_row + d));
    partial[static_cast<std::size_t>(call.dims.HV) * call.width + static_cast<std::size_t>(hv)] =
        lane_sum(sum);
  }
}

// One (sequence, value head).
inline void gate_cumsum_task(const GateCumsumForwardParams& params, const core::Problem& p,
                             const GateCall& call, std::int64_t task, float* scratch) {
  const core::Sequence seq = p.sequence(task / call.dims.HV);
  const std::int64_t hv = task % call.dims.HV;
  const HeadGate& gate = call.heads[static_cast<std::size_t>(hv)];
  const Rows g = rows_of(p.raw_gate ? params.g_raw : params.g_ln, seq.row, seq.begin, hv);
  const RowsOut out = rows_of(params.gcum_log2, seq.row, seq.begin, hv);
  float* sum = scratch + call.width;
  float* scaled = scratch + 2 * call.width;
  for (std::int64_t t = 0; t < seq.length; ++t) {
    if (t % params.chunk == 0) fill_rows(sum, call.width, 1, call.width, 0.0F);
    load_rows(g.from(t), 1, call.k, call.width, scratch, call.width);
    for (std::size_t d = 0; d < call.width; d += kLanes) {
      const Vec total = hn::Add(load(sum + d), decay_ln(gate, load(scratch + d), d));
      store(total, sum + d);
      store(hn::Mul(total, splat(1.44269504F)), scaled + d);
    }
    store_rows(scaled, call.width, 1, call.k, out.from(t));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
