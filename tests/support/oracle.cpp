#include "support/oracle.h"

#include "core/problem.h"
#include "ref/recurrent.h"
#include "support/host_view.h"

namespace kda::test {
namespace {

TensorView add(Outputs* out, Quantity quantity, std::vector<std::int64_t> shape) {
  HostTensor& tensor = (*out)[quantity];
  tensor = HostTensor(std::move(shape));
  return f64_view(tensor);
}

// The state before the first token of every 64-token block.
void block_states(const OperatorInputs& in, const core::Problem& problem, const TensorView& h_kv) {
  for (std::int64_t n = 0; n < problem.dims.N; ++n) {
    const core::Sequence sequence = problem.sequence(n);
    for (std::int64_t hv = 0; hv < problem.dims.HV; ++hv) {
      const auto head = ref::read_head<double>(in, {}, problem, n, hv);
      ref::Matrix<double> state = head.state0;
      if (sequence.length > 0) ref::write_state(state, h_kv, sequence.first_block, hv);
      const auto keep = [&](std::int64_t t, const ref::Matrix<double>& after) {
        const std::int64_t next = t + 1;
        if (next % kStateBlockTokens != 0 || next == sequence.length) return;
        ref::write_state(after, h_kv, sequence.first_block + next / kStateBlockTokens, hv);
      };
      ref::recurrent_head_forward<double>(head, &state, nullptr, keep);
    }
  }
}

}  // namespace

OperatorInputs f64_inputs(const Case& c, const CaseData& data) {
  OperatorInputs in;
  in.q = f64_view(data.q);
  in.k = f64_view(data.k);
  in.v = f64_view(data.v);
  (c.raw_gate() ? in.g_raw : in.g_ln) = f64_view(data.g);
  in.gate.a_log = f64_view(data.a_log);
  in.gate.dt_bias = f64_view(data.dt_bias);
  if (c.safe_gate()) in.gate.lower_bound_ln = -5.0;
  (c.beta_is_logit() ? in.beta_logit : in.beta) = f64_view(data.beta);
  in.beta_max = c.beta_max();
  in.qk_l2norm = c.qk_l2norm;
  in.scale = c.scale;
  in.initial_state_kv = f64_view(data.state0);
  if (!c.cu.empty()) {
    in.cu_seqlens = view_of(c.cu.data(), {static_cast<std::int64_t>(c.cu.size())});
  }
  return in;
}

ChunkBackwardParams f64_backward_params(const Case& c, const CaseData& data, Outputs* out) {
  ChunkBackwardParams p;
  p.in = f64_inputs(c, data);
  p.chunk = c.chunk;
  p.d_o = f64_view(data.d_o);
  p.d_final_state_kv = f64_view(data.d_final_state);
  p.dq = add(out, Quantity::kDq, {c.B, c.T, c.H, c.K});
  p.dk = add(out, Quantity::kDk, {c.B, c.T, c.H, c.K});
  p.dv = add(out, Quantity::kDv, {c.B, c.T, c.HV, c.V});
  p.dg = add(out, Quantity::kDg, {c.B, c.T, c.HV, c.K});
  p.dbeta = add(out, Quantity::kDbeta, {c.B, c.T, c.HV});
  if (c.has_a_log()) p.da_log = add(out, Quantity::kDaLog, {c.HV});
  if (c.raw_gate()) p.d_dt_bias = add(out, Quantity::kDDtBias, {c.HV, c.K});
  if (c.initial_state) {
    p.d_initial_state_kv = add(out, Quantity::kDState0, {c.N(), c.HV, c.K, c.V});
  }
  return p;
}

Outputs oracle(const Case& c, const CaseData& data, const OracleOptions& options) {
  Outputs out;
  if (options.forward) {
    RecurrentForwardParams p;
    p.in = f64_inputs(c, data);
    p.o = add(&out, Quantity::kO, {c.B, c.T, c.HV, c.V});
    if (c.final_state) {
      p.final_state_kv = add(&out, Quantity::kFinalState, {c.N(), c.HV, c.K, c.V});
    }
    const core::Problem problem = core::check_recurrent_forward(p);
    ref::recurrent_forward<double>(p, problem);
    if (c.h_kv) {
      block_states(p.in, problem,
                   add(&out, Quantity::kH, {problem.num_state_blocks, c.HV, c.K, c.V}));
    }
  }
  if (options.backward) {
    const ChunkBackwardParams p = f64_backward_params(c, data, &out);
    ref::recurrent_backward<double>(p, core::check_chunk_backward(p));
  }
  return out;
}

}  // namespace kda::test
