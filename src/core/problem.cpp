#include "core/problem.h"

#include <charconv>
#include <cmath>
#include <string>

#include "core/check.h"

namespace kda::core {
namespace {

constexpr std::int64_t kBlock = kStateBlockTokens;

// The shortest text that reads back to the same number: std::to_string shows 1e-9 as 0.000000.
std::string number_text(double value) {
  char buffer[32];
  const auto [end, status] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return status == std::errc{} ? std::string(buffer, end) : std::string("?");
}

DType accum_of(DType io) { return io == DType::kF64 ? DType::kF64 : DType::kF32; }

// f32 or the call's own dtype; all f64 when q is f64.
void check_operand_dtype(const char* name, const ConstTensorView& view, DType io) {
  if (io == DType::kF64) {
    check_dtype(name, view, {DType::kF64});
  } else if (io == DType::kF32) {
    check_dtype(name, view, {DType::kF32});
  } else {
    check_dtype(name, view, {DType::kF32, io});
  }
}

void check_gate_params(const GateParams& gate, const Problem& p, const char* reference) {
  const Dims& d = p.dims;
  if (gate.a_log.defined()) {
    check_shape("a_log", gate.a_log, {{"HV", d.HV}});
    check_dtype("a_log", gate.a_log, {p.accum});
    check_space("a_log", gate.a_log, p.space, reference);
    check_contiguous("a_log", gate.a_log);
  } else if (!gate.lower_bound_ln.has_value()) {
    fail_argument(
        "a_log: required by the standard gate (it may be absent only with a lower bound)");
  }
  if (gate.dt_bias.defined()) {
    check_shape("dt_bias", gate.dt_bias, {{"HV", d.HV}, {"K", d.K}});
    check_dtype("dt_bias", gate.dt_bias, {p.accum});
    check_space("dt_bias", gate.dt_bias, p.space, reference);
    check_contiguous("dt_bias", gate.dt_bias);
  }
  if (gate.lower_bound_ln.has_value()) {
    const double bound = *gate.lower_bound_ln;
    if (!std::isfinite(bound) || bound >= 0.0) {
      fail_argument("lower_bound_ln: expected a finite value < 0, given " + number_text(bound));
    }
  }
}

// Reads, checks and stores the sequence boundaries; needs dims.B and dims.T.
void check_sequences(const ConstTensorView& cu_seqlens, Problem* p, const char* reference) {
  Dims& d = p->dims;
  p->packed = cu_seqlens.defined();
  if (!p->packed) {
    d.N = d.B;
    const std::int64_t blocks = (d.T + kBlock - 1) / kBlock;
    p->num_state_blocks = blocks * d.B;
    for (std::int64_t n = 0; n < d.N; ++n)
      p->first_block.push_back(n * blocks);
    return;
  }
  check_rank("cu_seqlens", cu_seqlens, 1, "[N+1]");
  check_dtype("cu_seqlens", cu_seqlens, {DType::kI32, DType::kI64});
  if (d.B != 1) {
    fail_argument("q: packed sequences (cu_seqlens) need B=1, given B=" + std::to_string(d.B));
  }
  if (cu_seqlens.shape[0] < 1) {
    fail_argument("cu_seqlens: expected at least the leading 0, given " + shape_text(cu_seqlens));
  }
  d.N = cu_seqlens.shape[0] - 1;
  if (cu_seqlens.space != MemorySpace::kHost) {
    check_space("cu_seqlens", cu_seqlens, p->space, reference);
    p->offsets_on_device = true;
    p->num_state_blocks = d.T / kBlock + d.N;
    return;
  }
  for (std::int64_t n = 0; n <= d.N; ++n) {
    const std::int64_t offset = index_at(cu_seqlens, n);
    const std::int64_t previous = n == 0 ? 0 : p->offsets.back();
    if (n == 0 && offset != 0) {
      fail_argument("cu_seqlens[0]: expected 0, given " + std::to_string(offset));
    }
    if (offset < previous) {
      fail_argument("cu_seqlens[" + std::to_string(n) +
                    "]: expected >= " + std::to_string(previous) + " (non-decreasing), given " +
                    std::to_string(offset));
    }
    if (n > 0) {
      p->first_block.push_back(p->num_state_blocks);
      p->num_state_blocks += (offset - previous + kBlock - 1) / kBlock;
    }
    p->offsets.push_back(offset);
  }
  if (p->offsets.back() != d.T) {
    fail_argument("cu_seqlens[" + std::to_string(d.N) + "]: expected the token count T=" +
                  std::to_string(d.T) + ", given " + std::to_string(p->offsets.back()));
  }
}

void check_state(const char* name, const ConstTensorView& view, const Problem& p) {
  if (!view.defined()) return;
  const Dims& d = p.dims;
  check_shape(name, view, {{"N", d.N}, {"HV", d.HV}, {"K", d.K}, {"V", d.V}});
  check_dtype(name, view, {p.accum});
  check_space(name, view, p.space, "q");
}

void check_h(const ConstTensorView& h_kv, const Problem& p) {
  if (!h_kv.defined()) return;
  const Dims& d = p.dims;
  check_shape("h_kv", h_kv,
              {{"num_state_blocks", p.num_state_blocks}, {"HV", d.HV}, {"K", d.K}, {"V", d.V}});
  if (p.space == MemorySpace::kHost) {
    check_dtype("h_kv", h_kv, {p.accum});
  } else {
    check_dtype("h_kv", h_kv, {DType::kF32, DType::kBF16});
  }
  check_space("h_kv", h_kv, p.space, "q");
  check_contiguous("h_kv", h_kv);
}

void check_chunk_size(int chunk) {
  if (chunk != 16 && chunk != 32 && chunk != 64 && chunk != 128) {
    fail_argument("chunk: expected 16, 32, 64 or 128, given " + std::to_string(chunk));
  }
}

void check_beta(const OperatorInputs& in, Problem* p) {
  const Dims& d = p->dims;
  if (in.beta.defined() == in.beta_logit.defined()) {
    fail_argument(in.beta.defined() ? "beta, beta_logit: expected exactly one, given both"
                                    : "beta, beta_logit: expected exactly one, given none");
  }
  p->beta_is_logit = in.beta_logit.defined();
  const char* name = p->beta_is_logit ? "beta_logit" : "beta";
  const ConstTensorView& beta = p->beta_is_logit ? in.beta_logit : in.beta;
  check_shape(name, beta, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}});
  check_operand_dtype(name, beta, p->io);
  check_space(name, beta, p->space, "q");
  if (!std::isfinite(in.beta_max) || in.beta_max <= 0.0) {
    fail_argument(
        "beta_max: expected a finite value > 0 (1, or 2 for negative eigenvalues), given " +
        std::to_string(in.beta_max));
  }
  if (!p->beta_is_logit && in.beta_max != 1.0) {
    fail_argument("beta_max: scales beta_logit only, but beta was given");
  }
}

Problem check_inputs(const OperatorInputs& in, bool beta_per_value) {
  Problem p;
  Dims& d = p.dims;
  check_rank("q", in.q, 4, "[B,T,H,K]");
  check_dtype("q", in.q, {DType::kF64, DType::kF32, DType::kBF16, DType::kF16});
  d.B = in.q.shape[0];
  d.T = in.q.shape[1];
  d.H = in.q.shape[2];
  d.K = in.q.shape[3];
  p.io = in.q.dtype;
  p.accum = accum_of(p.io);
  p.space = in.q.space;
  if (d.H < 1) fail_argument("q: expected at least one head, given " + shape_text(in.q));
  check_shape("k", in.k, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}});
  check_dtype("k", in.k, {p.io});
  check_space("k", in.k, p.space, "q");
  check_rank("v", in.v, 4, "[B,T,HV,V]");
  d.HV = in.v.shape[2];
  d.V = in.v.shape[3];
  check_shape("v", in.v, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
  check_dtype("v", in.v, {p.io});
  check_space("v", in.v, p.space, "q");
  if (d.HV < d.H || d.HV % d.H != 0) {
    fail_argument("v: expected HV to be a positive multiple of H=" + std::to_string(d.H) +
                  ", given HV=" + std::to_string(d.HV));
  }
  for (auto [name, extent] : {Extent{"q: K", d.K}, Extent{"v: V", d.V}}) {
    if (extent < 1 || extent > kMaxHeadDim) {
      fail_argument(std::string(name) + ": expected 1 to " + std::to_string(kMaxHeadDim) +
                    ", given " + std::to_string(extent));
    }
  }
  check_sequences(in.cu_seqlens, &p, "q");

  if (in.g_ln.defined() == in.g_raw.defined()) {
    fail_argument(in.g_ln.defined() ? "g_ln, g_raw: expected exactly one, given both"
                                    : "g_ln, g_raw: expected exactly one, given none");
  }
  p.raw_gate = in.g_raw.defined();
  const char* g_name = p.raw_gate ? "g_raw" : "g_ln";
  const ConstTensorView& g = p.raw_gate ? in.g_raw : in.g_ln;
  check_shape(g_name, g, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"K", d.K}});
  check_operand_dtype(g_name, g, p.io);
  check_space(g_name, g, p.space, "q");
  if (p.raw_gate) {
    check_gate_params(in.gate, p, "q");
  } else if (in.gate.a_log.defined() || in.gate.dt_bias.defined() ||
             in.gate.lower_bound_ln.has_value()) {
    fail_argument("gate: a_log, dt_bias and lower_bound_ln belong to g_raw, but g_ln was given");
  }

  if (!beta_per_value) check_beta(in, &p);

  p.scale = in.scale.value_or(1.0 / std::sqrt(static_cast<double>(d.K)));
  if (!std::isfinite(p.scale)) {
    fail_argument("scale: expected a finite value, given " + number_text(p.scale));
  }
  check_state("initial_state_kv", in.initial_state_kv, p);
  return p;
}

void check_output(const char* name, const TensorView& view, const Problem& p,
                  std::initializer_list<Extent> shape, std::initializer_list<DType> dtypes) {
  if (!view.defined()) return;
  check_shape(name, view, shape);
  check_dtype(name, view, dtypes);
  check_space(name, view, p.space, "q");
  check_writable(name, view);
}

void check_output_norm(const OutputNorm& norm, const Problem& p) {
  const Dims& d = p.dims;
  if (!norm.weight.defined()) {
    if (norm.gate.defined()) fail_argument("out_norm.gate: needs out_norm.weight");
    return;
  }
  check_shape("out_norm.weight", norm.weight, {{"V", d.V}});
  check_dtype("out_norm.weight", norm.weight, {p.accum});
  check_space("out_norm.weight", norm.weight, p.space, "q");
  check_contiguous("out_norm.weight", norm.weight);
  if (!std::isfinite(norm.eps) || norm.eps < 0.0) {
    fail_argument("out_norm.eps: expected a finite value >= 0, given " + number_text(norm.eps));
  }
  if (!norm.gate.defined()) return;
  check_shape("out_norm.gate", norm.gate, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
  check_operand_dtype("out_norm.gate", norm.gate, p.io);
  check_space("out_norm.gate", norm.gate, p.space, "q");
}

}  // namespace

Sequence Problem::sequence(std::int64_t n) const {
  const auto i = static_cast<std::size_t>(n);
  if (!packed) return {n, 0, dims.T, first_block[i]};
  return {0, offsets[i], offsets[i + 1] - offsets[i], first_block[i]};
}

std::int64_t count_state_blocks(const OperatorInputs& inputs) {
  check_rank("q", inputs.q, 4, "[B,T,H,K]");
  Problem p;
  p.dims.B = inputs.q.shape[0];
  p.dims.T = inputs.q.shape[1];
  p.space = inputs.q.space;
  check_sequences(inputs.cu_seqlens, &p, "q");
  return p.num_state_blocks;
}

Problem check_chunk_forward(const ChunkForwardParams& params) {
  Problem p = check_inputs(params.in, /*beta_per_value=*/false);
  const Dims& d = p.dims;
  check_chunk_size(params.chunk);
  p.chunk = params.chunk;
  check_shape("o", params.o, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
  check_output("o", params.o, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}}, {p.io});
  check_state("final_state_kv", params.final_state_kv, p);
  if (params.final_state_kv.defined()) check_writable("final_state_kv", params.final_state_kv);
  check_h(params.h_kv, p);
  return p;
}

Problem check_chunk_backward(const ChunkBackwardParams& params) {
  Problem p = check_inputs(params.in, /*beta_per_value=*/false);
  const Dims& d = p.dims;
  check_chunk_size(params.chunk);
  p.chunk = params.chunk;
  check_h(params.h_kv, p);
  if (params.d_o.defined()) {
    check_shape("d_o", params.d_o, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
    check_dtype("d_o", params.d_o, {p.io});
    check_space("d_o", params.d_o, p.space, "q");
  }
  check_state("d_final_state_kv", params.d_final_state_kv, p);
  if (!p.raw_gate && (params.da_log.defined() || params.d_dt_bias.defined())) {
    fail_argument("da_log, d_dt_bias: gradients of the gate need g_raw, but g_ln was given");
  }
  if (params.da_log.defined() && !params.in.gate.a_log.defined()) {
    fail_argument("da_log: requested, but a_log is absent");
  }
  const DType q_dtype = p.io;
  const ConstTensorView& g = p.raw_gate ? params.in.g_raw : params.in.g_ln;
  const ConstTensorView& beta = p.beta_is_logit ? params.in.beta_logit : params.in.beta;
  check_output("dq", params.dq, p, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}},
               {q_dtype, p.accum});
  check_output("dk", params.dk, p, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}},
               {q_dtype, p.accum});
  check_output("dv", params.dv, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}},
               {q_dtype, p.accum});
  check_output("dg", params.dg, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"K", d.K}},
               {g.dtype, p.accum});
  check_output("dbeta", params.dbeta, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}},
               {beta.dtype, p.accum});
  check_output("da_log", params.da_log, p, {{"HV", d.HV}}, {p.accum});
  check_output("d_dt_bias", params.d_dt_bias, p, {{"HV", d.HV}, {"K", d.K}}, {p.accum});
  check_state("d_initial_state_kv", params.d_initial_state_kv, p);
  if (params.d_initial_state_kv.defined()) {
    check_writable("d_initial_state_kv", params.d_initial_state_kv);
  }
  return p;
}

Problem check_recurrent_forward(const RecurrentForwardParams& params) {
  const bool beta_per_value = params.beta_v.defined();
  if (beta_per_value && (params.in.beta.defined() || params.in.beta_logit.defined())) {
    fail_argument("beta_v: replaces beta and beta_logit, but one of them was given too");
  }
  Problem p = check_inputs(params.in, beta_per_value);
  const Dims& d = p.dims;
  if (beta_per_value) {
    check_shape("beta_v", params.beta_v, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
    check_operand_dtype("beta_v", params.beta_v, p.io);
    check_space("beta_v", params.beta_v, p.space, "q");
  }
  check_shape("o", params.o, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}});
  check_output("o", params.o, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"V", d.V}}, {p.io});
  check_output_norm(params.out_norm, p);
  check_state("final_state_kv", params.final_state_kv, p);
  if (params.final_state_kv.defined()) check_writable("final_state_kv", params.final_state_kv);

  const StatePool& pool = params.pool;
  if (!pool.pool_kv.defined()) {
    if (pool.slots.defined() || pool.num_accepted.defined()) {
      fail_argument("pool.slots, pool.num_accepted: need pool.pool_kv");
    }
    return p;
  }
  if (params.in.initial_state_kv.defined() || params.final_state_kv.defined()) {
    fail_argument("pool: replaces initial_state_kv and final_state_kv, but one was given too");
  }
  check_rank("pool.pool_kv", pool.pool_kv, 4, "[S,HV,K,V]");
  const std::int64_t slots_in_pool = pool.pool_kv.shape[0];
  check_shape("pool.pool_kv", pool.pool_kv,
              {{"S", slots_in_pool}, {"HV", d.HV}, {"K", d.K}, {"V", d.V}});
  if (p.accum == DType::kF64) {
    check_dtype("pool.pool_kv", pool.pool_kv, {DType::kF64});
  } else {
    check_dtype("pool.pool_kv", pool.pool_kv, {DType::kF32, DType::kBF16});
  }
  check_space("pool.pool_kv", pool.pool_kv, p.space, "q");
  check_writable("pool.pool_kv", pool.pool_kv);

  const bool per_token = pool.slots.rank == 2;
  if (per_token) {
    if (pool.slots.shape[0] != d.N) {
      fail_argument("pool.slots: expected [N=" + std::to_string(d.N) + ",Tmax], given " +
                    shape_text(pool.slots));
    }
    check_readable("pool.slots", pool.slots);
  } else {
    check_shape("pool.slots", pool.slots, {{"N", d.N}});
  }
  check_dtype("pool.slots", pool.slots, {DType::kI32, DType::kI64});
  check_space("pool.slots", pool.slots, p.space, "q");
  if (pool.num_accepted.defined()) {
    if (!per_token) fail_argument("pool.num_accepted: needs pool.slots of shape [N,Tmax]");
    check_shape("pool.num_accepted", pool.num_accepted, {{"N", d.N}});
    check_dtype("pool.num_accepted", pool.num_accepted, {DType::kI32, DType::kI64});
    check_space("pool.num_accepted", pool.num_accepted, p.space, "q");
  }
  if (p.space != MemorySpace::kHost) return p;

  std::vector<char> written(static_cast<std::size_t>(slots_in_pool), 0);
  for (std::int64_t n = 0; n < d.N; ++n) {
    const std::int64_t columns = per_token ? pool.slots.shape[1] : 1;
    const std::int64_t length = p.sequence(n).length;
    if (per_token && length > columns) {
      fail_argument("pool.slots: row " + std::to_string(n) + " has " + std::to_string(length) +
                    " tokens, but only Tmax=" + std::to_string(columns) + " slots");
    }
    if (pool.num_accepted.defined()) {
      const std::int64_t accepted = index_at(pool.num_accepted, n);
      if (accepted < 0 || accepted > columns) {
        fail_argument("pool.num_accepted[" + std::to_string(n) + "]: expected 0 to " +
                      std::to_string(columns) + ", given " + std::to_string(accepted));
      }
    }
    for (std::int64_t t = 0; t < columns; ++t) {
      ConstTensorView row = pool.slots;
      std::int64_t slot = 0;
      if (per_token) {
        const std::int64_t offset = n * row.stride[0] + t * row.stride[1];
        slot = row.dtype == DType::kI32 ? static_cast<const std::int32_t*>(row.data)[offset]
                                        : static_cast<const std::int64_t*>(row.data)[offset];
      } else {
        slot = index_at(row, n);
      }
      const std::string where = "pool.slots[" + std::to_string(n) +
                                (per_token ? "," + std::to_string(t) : std::string()) + "]";
      if (slot >= slots_in_pool) {
        fail_argument(where + ": expected < S=" + std::to_string(slots_in_pool) + ", given " +
                      std::to_string(slot));
      }
      if (slot < 0 || length == 0) continue;
      if (written[static_cast<std::size_t>(slot)] != 0) {
        fail_argument(where + ": slot " + std::to_string(slot) + " is named twice");
      }
      written[static_cast<std::size_t>(slot)] = 1;
    }
  }
  return p;
}

namespace {

Problem gate_problem(const char* name, const ConstTensorView& g) {
  Problem p;
  check_rank(name, g, 4, "[B,T,HV,K]");
  check_dtype(name, g, {DType::kF64, DType::kF32, DType::kBF16, DType::kF16});
  p.dims.B = g.shape[0];
  p.dims.T = g.shape[1];
  p.dims.HV = g.shape[2];
  p.dims.K = g.shape[3];
  p.io = g.dtype;
  p.accum = accum_of(p.io);
  p.space = g.space;
  if (p.dims.HV < 1 || p.dims.K < 1 || p.dims.K > kMaxHeadDim) {
    fail_argument(std::string(name) + ": expected HV >= 1 and 1 <= K <= " +
                  std::to_string(kMaxHeadDim) + ", given " + shape_text(g));
  }
  return p;
}

void check_gate_output(const char* name, const TensorView& view, const Problem& p,
                       std::initializer_list<DType> dtypes) {
  const Dims& d = p.dims;
  check_output(name, view, p, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"K", d.K}}, dtypes);
}

}  // namespace

Problem check_gate_forward(const GateForwardParams& params) {
  Problem p = gate_problem("g_raw", params.g_raw);
  p.raw_gate = true;
  check_gate_params(params.gate, p, "g_raw");
  if (!params.g_ln.defined()) fail_argument("g_ln: required output, given none");
  check_gate_output("g_ln", params.g_ln, p, {p.accum});
  return p;
}

Problem check_gate_backward(const GateBackwardParams& params) {
  Problem p = gate_problem("g_raw", params.g_raw);
  const Dims& d = p.dims;
  p.raw_gate = true;
  check_gate_params(params.gate, p, "g_raw");
  check_shape("dg_ln", params.dg_ln, {{"B", d.B}, {"T", d.T}, {"HV", d.HV}, {"K", d.K}});
  check_dtype("dg_ln", params.dg_ln, {p.accum});
  check_space("dg_ln", params.dg_ln, p.space, "g_raw");
  check_gate_output("dg_raw", params.dg_raw, p, {p.io, p.accum});
  if (params.da_log.defined() && !params.gate.a_log.defined()) {
    fail_argument("da_log: requested, but a_log is absent");
  }
  check_output("da_log", params.da_log, p, {{"HV", d.HV}}, {p.accum});
  check_output("d_dt_bias", params.d_dt_bias, p, {{"HV", d.HV}, {"K", d.K}}, {p.accum});
  return p;
}

Problem check_gate_cumsum_forward(const GateCumsumForwardParams& params) {
  if (params.g_ln.defined() == params.g_raw.defined()) {
    fail_argument(params.g_ln.defined() ? "g_ln, g_raw: expected exactly one, given both"
                                        : "g_ln, g_raw: expected exactly one, given none");
  }
  const bool raw = params.g_raw.defined();
  Problem p = gate_problem(raw ? "g_raw" : "g_ln", raw ? params.g_raw : params.g_ln);
  p.raw_gate = raw;
  if (raw) check_gate_params(params.gate, p, "g_raw");
  if (params.chunk < 1) {
    fail_argument("chunk: expected >= 1, given " + std::to_string(params.chunk));
  }
  p.chunk = params.chunk;
  check_sequences(params.cu_seqlens, &p, "g");
  if (!params.gcum_log2.defined()) fail_argument("gcum_log2: required output, given none");
  check_gate_output("gcum_log2", params.gcum_log2, p, {p.accum});
  return p;
}

namespace {

Problem l2norm_problem(const ConstTensorView& x, double eps) {
  Problem p;
  check_rank("x", x, 4, "[B,T,H,K]");
  check_dtype("x", x, {DType::kF64, DType::kF32, DType::kBF16, DType::kF16});
  p.dims.B = x.shape[0];
  p.dims.T = x.shape[1];
  p.dims.H = x.shape[2];
  p.dims.K = x.shape[3];
  p.io = x.dtype;
  p.accum = accum_of(p.io);
  p.space = x.space;
  if (!(eps > 0.0) || !std::isfinite(eps)) {
    fail_argument("eps: expected a finite value > 0, given " + number_text(eps));
  }
  return p;
}

}  // namespace

Problem check_l2norm_forward(const L2NormForwardParams& params) {
  Problem p = l2norm_problem(params.x, params.eps);
  const Dims& d = p.dims;
  if (!params.y.defined()) fail_argument("y: required output, given none");
  check_output("y", params.y, p, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}}, {p.io, p.accum});
  check_output("rstd", params.rstd, p, {{"B", d.B}, {"T", d.T}, {"H", d.H}}, {p.accum});
  return p;
}

Problem check_l2norm_backward(const L2NormBackwardParams& params) {
  Problem p = l2norm_problem(params.x, params.eps);
  const Dims& d = p.dims;
  check_shape("dy", params.dy, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}});
  check_dtype("dy", params.dy, {p.io, p.accum});
  check_space("dy", params.dy, p.space, "x");
  if (!params.dx.defined()) fail_argument("dx: required output, given none");
  check_output("dx", params.dx, p, {{"B", d.B}, {"T", d.T}, {"H", d.H}, {"K", d.K}},
               {p.io, p.accum});
  return p;
}

}  // namespace kda::core
