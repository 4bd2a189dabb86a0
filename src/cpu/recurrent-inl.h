// Token-by-token recurrence of one (sequence, value head) task. Per tile of value channels, two
// sweeps over S: the first reads kS = S^T (alpha k) and qS = S^T (alpha q), the second
// writes S' = diag(alpha) S + k r^T with r = beta (v - kS); o = scale (qS + (q . k) r). A tile of
// S fits the first-level cache, so memory sees one read and one write of the state.
#include <cmath>

#include "core/check.h"
#include "cpu/chunk_call.h"
#include "cpu/chunk_factors-inl.h"
#include "kda/ops/recurrent.h"

#if defined(KDA_CPU_RECURRENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_RECURRENT_INL_H_
#undef KDA_CPU_RECURRENT_INL_H_
#else
#define KDA_CPU_RECURRENT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x - 1 to full precision also near 0; exactly -1 below -87, so that a hard reset clears.
HWY_INLINE Vec exp_minus_1(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec clamped = hn::Min(hn::Max(x, splat(-87.0F)), splat(88.0F));
  const Vec magic = splat(12582912.0F);  // leaves the nearest integer in the low mantissa bits
  const Vec shifted = hn::MulAdd(clamped, splat(1.44269504F), magic);
  const Vec n = hn::Sub(shifted, magic);
  Vec r = hn::NegMulAdd(n, splat(0.693145752F), clamped);
  r = hn::NegMulAdd(n, splat(1.42860677e-6F), r);
  const Vec tail = hn::MulAdd(hn::Mul(r, r), exp_tail(r), r);  // e^r - 1
  const auto whole = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x4b400000));
  const Vec two_n = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(whole, hn::Set(di, 127))));
  const Vec y = hn::MulAdd(two_n, tail, hn::Sub(two_n, splat(1.0F)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// The decay enters as fade = alpha - 1: near 1, alpha itself is rounded alike at every token, and
// over thousands of tokens that adds up; S + fade S is rounded at random.
struct RecurrentScratch {
  float* s;     // [k_pad][ld_v], used where the state cannot be updated in place
  float* bias;  // [k_pad]
  float* q;     // [k_pad]
  float* k;     // [k_pad]
  float* fade;  // [k_pad] alpha - 1
  float* qa;    // [k_pad] q alpha
  float* ka;    // [k_pad] k alpha
  float* v;     // [v_pad]
  float* beta;  // [v_pad], one step size per value channel
  float* o;     // [v_pad]
  float* gate;  // [v_pad], of the output
};

inline RecurrentScratch plan_recurrent(Planner* planner, const ChunkSizes& s) {
  RecurrentScratch r{};
  r.s = planner->floats(s.k_pad * s.ld_v);
  for (float** row : {&r.bias, &r.q, &r.k, &r.fade, &r.qa, &r.ka})
    *row = planner->floats(s.k_pad);
  for (float** row : {&r.v, &r.beta, &r.o, &r.gate})
    *row = planner->floats(s.v_pad);
  return r;
}

inline std::size_t recurrent_scratch_bytes(const Dims& dims) {
  Planner planner;
  plan_recurrent(&planner, chunk_sizes(dims, kLanes));
  return planner.bytes();
}

// One token on `kVecs` vectors of value channels; s, w.v, w.beta, w.o are offset by `at`.
template <int kVecs>
HWY_INLINE void step_tile(const RecurrentScratch& w, std::size_t k, float scale, float qk,
                          std::size_t at, float* HWY_RESTRICT s, std::size_t ld,
                          bool more_columns) {
  constexpr std::size_t kWidth = static_cast<std::size_t>(kVecs) * kLanes;
  Vec ks[kVecs];
  Vec qs[kVecs];
  for (int n = 0; n < kVecs; ++n)
    ks[n] = qs[n] = zero();
  for (std::size_t d = 0; d < k; ++d) {
    const Vec key = splat(w.ka[d]);
    const Vec query = splat(w.qa[d]);
    for (int n = 0; n < kVecs; ++n) {
      const Vec x = load(s + d * ld + static_cast<std::size_t>(n) * kLanes);
      ks[n] = hn::MulAdd(key, x, ks[n]);
      qs[n] = hn::MulAdd(query, x, qs[n]);
    }
  }
  Vec r[kVecs];
  for (int n = 0; n < kVecs; ++n) {
    const std::size_t i = at + static_cast<std::size_t>(n) * kLanes;
    r[n] = hn::Mul(load(w.beta + i), hn::Sub(load(w.v + i), ks[n]));
    store(hn::Mul(splat(scale), hn::MulAdd(splat(qk), r[n], qs[n])), w.o + i);
  }
  for (std::size_t d = 0; d < k; ++d) {
    const Vec fade = splat(w.fade[d]);
    const Vec key = splat(w.k[d]);
    float* row = s + d * ld;
    // The next tile's first sweep strides over rows, which hardware prefetchers follow badly.
    if (more_columns) {
      for (std::size_t i = 0; i < kWidth; i += 16)
        hwy::Prefetch(row + kWidth + i);
    }
    for (int n = 0; n < kVecs; ++n) {
      float* x = row + static_cast<std::size_t>(n) * kLanes;
      const Vec old = load(x);
      store(hn::MulAdd(key, r[n], hn::MulAdd(fade, old, old)), x);
    }
  }
}

// One token on the whole state.
HWY_INLINE void step_state(const RecurrentScratch& w, const ChunkSizes& z, float scale, float* s,
                           std::size_t ld) {
  Vec dot = zero();
  for (std::size_t d = 0; d < z.k_pad; d += kLanes) {
    dot = hn::MulAdd(load(w.q + d), load(w.k + d), dot);
  }
  const float qk = lane_sum(dot);
  std::size_t at = 0;
  for (; at + 4 * kLanes <= z.v_pad; at += 4 * kLanes) {
    step_tile<4>(w, z.k, scale, qk, at, s + at, ld, at + 8 * kLanes <= z.v_pad);
  }
  for (; at < z.v_pad; at += kLanes)
    step_tile<1>(w, z.k, scale, qk, at, s + at, ld, false);
}

// Brings token t of a head into the scratch rows, activated and normalised.
HWY_INLINE void load_token(const HeadInputs& head, const HeadGate& gate, const Rows& beta_v,
                           const OperatorInputs& in, const core::Problem& p, const ChunkSizes& z,
                           std::int64_t t, const RecurrentScratch& w) {
  load_rows(head.q.from(t), 1, z.k, z.k_pad, w.q, z.k_pad);
  load_rows(head.k.from(t), 1, z.k, z.k_pad, w.k, z.k_pad);
  load_rows(head.v.from(t), 1, z.v, z.v_pad, w.v, z.v_pad);
  load_rows(head.g.from(t), 1, z.k, z.k_pad, w.fade, z.k_pad);
  for (std::size_t d = 0; d < z.k_pad; d += kLanes) {
    store(exp_minus_1(decay_ln(gate, load(w.fade + d), d)), w.fade + d);
  }
  if (in.qk_l2norm) {
    const bool bf16 = p.io == DType::kBF16;
    float rstd = 0.0F;
    normalise_rows(w.q, z.k_pad, 1, z.k_pad, bf16, &rstd);
    normalise_rows(w.k, z.k_pad, 1, z.k_pad, bf16, &rstd);
  }
  for (std::size_t d = 0; d < z.k_pad; d += kLanes) {
    const Vec fade = load(w.fade + d);
    const Vec q = load(w.q + d);
    const Vec k = load(w.k + d);
    store(hn::MulAdd(fade, q, q), w.qa + d);
    store(hn::MulAdd(fade, k, k), w.ka + d);
  }
  if (beta_v.defined()) {
    load_rows(beta_v.from(t), 1, z.v, z.v_pad, w.beta, z.v_pad);
    return;
  }
  Vec beta = splat(load_element(head.beta.from(t).data, head.beta.dtype));
  if (p.beta_is_logit) beta = hn::Mul(splat(static_cast<float>(in.beta_max)), sigmoid(beta));
  for (std::size_t i = 0; i < z.v_pad; i += kLanes)
    store(beta, w.beta + i);
}

// w.o = weight o / sqrt(mean o^2 + eps) sigmoid(gate); columns at and past V stay 0.
HWY_INLINE void normalise_output(const OutputNorm& norm, const Rows& gate, const ChunkSizes& z,
                                 std::int64_t t, const RecurrentScratch& w) {
  Vec squares = zero();
  for (std::size_t i = 0; i < z.v_pad; i += kLanes) {
    const Vec x = load(w.o + i);
    squares = hn::MulAdd(x, x, squares);
  }
  const float mean = lane_sum(squares) / static_cast<float>(z.v);
  const float rstd = 1.0F / std::sqrt(mean + static_cast<float>(norm.eps));
  const auto* weight = static_cast<const float*>(norm.weight.data);
  for (std::size_t i = 0; i < z.v; ++i)
    w.o[i] *= rstd * weight[i];
  if (!gate.defined()) return;
  load_rows(gate.from(t), 1, z.v, z.v_pad, w.gate, z.v_pad);
  for (std::size_t i = 0; i < z.v_pad; i += kLanes) {
    store(hn::Mul(load(w.o + i), sigmoid(load(w.gate + i))), w.o + i);
  }
}

// Scratch from and to one K x V slot of a pool, any strides, f32 or bf16.
inline void load_slot(const TensorView& pool, std::int64_t slot, std::int64_t hv,
                      const ChunkSizes& z, float* s) {
  for (std::size_t d = 0; d < z.k; ++d) {
    Rows row = rows_of(ConstTensorView(pool), slot, hv, static_cast<std::int64_t>(d));
    row.step = pool.stride[3];
    load_rows(row, 1, z.v, z.v_pad, s + d * z.ld_v, z.ld_v);
  }
}
inline void store_slot(const float* s, const TensorView& pool, std::int64_t slot, std::int64_t hv,
                       const ChunkSizes& z) {
  for (std::size_t d = 0; d < z.k; ++d) {
    RowsOut row = rows_of(pool, slot, hv, static_cast<std::int64_t>(d));
    row.step = pool.stride[3];
    store_rows(s + d * z.ld_v, z.ld_v, 1, z.v, row);
  }
}

// The memory of one f32 state when whole vectors of it can be updated where they lie.
struct InPlace {
  float* s = nullptr;
  std::size_t ld = 0;
};
inline InPlace in_place(const TensorView& view, std::int64_t n, std::int64_t hv,
                        const ChunkSizes& z) {
  if (!view.defined() || view.dtype != DType::kF32 || view.stride[3] != 1 || z.v != z.v_pad ||
      view.stride[2] < static_cast<std::int64_t>(z.v)) {
    return {};
  }
  return {state_at(view, n, hv), static_cast<std::size_t>(view.stride[2])};
}

inline std::int64_t slot_at(const ConstTensorView& slots, std::int64_t n, std::int64_t t) {
  ConstTensorView row = slots;
  if (slots.rank == 1) return core::index_at(row, n);
  const std::int64_t offset = n * slots.stride[0] + t * slots.stride[1];
  row.stride[0] = 1;
  return core::index_at(row, offset);
}

inline void recurrent_task(const RecurrentForwardParams& params, const core::Problem& p,
                           std::int64_t task, void* scratch) {
  const ChunkSizes z = chunk_sizes(p.dims, kLanes);
  Planner planner(scratch);
  const RecurrentScratch w = plan_recurrent(&planner, z);
  const std::int64_t n = task / p.dims.HV;
  const std::int64_t hv = task % p.dims.HV;
  const core::Sequence seq = p.sequence(n);
  const StatePool& pool = params.pool;
  const bool pooled = pool.pool_kv.defined();
  const bool per_token = pooled && pool.slots.rank == 2;
  if (pooled && seq.length == 0) return;  // its slot stays as it is

  const HeadInputs head = head_inputs(params.in, p, seq, hv);
  const Rows beta_v = rows_of(params.beta_v, seq.row, seq.begin, hv);
  const HeadGate gate = head_gate(params.in.gate, p.raw_gate, hv, z.k, z.k_pad, w.bias);
  const RowsOut out = rows_of(params.o, seq.row, seq.begin, hv);
  const OutputNorm& norm = params.out_norm;
  const Rows out_gate = rows_of(norm.gate, seq.row, seq.begin, hv);

  // Where the state lives: in its destination when it can, else in scratch.
  InPlace state;
  std::int64_t slot = -1;
  if (pooled && !per_token) {
    slot = slot_at(pool.slots, n, 0);
    if (slot >= 0) state = in_place(pool.pool_kv, slot, hv, z);
  } else if (!pooled) {
    state = in_place(params.final_state_kv, n, hv, z);
  }
  const bool direct = state.s != nullptr;
  if (!direct) state = {w.s, z.ld_v};

  // Its start value. A pool slot updated in place already holds it.
  if (!(pooled && direct)) {
    fill_rows(state.s, state.ld, z.k, z.v_pad, 0.0F);
    std::int64_t start = slot;
    if (per_token) {
      const std::int64_t accepted =
          pool.num_accepted.defined() ? core::index_at(pool.num_accepted, n) : 1;
      start = accepted > 0 ? slot_at(pool.slots, n, accepted - 1) : -1;
    }
    if (pooled && start >= 0) load_slot(pool.pool_kv, start, hv, z, state.s);
    if (params.in.initial_state_kv.defined()) {
      load_state(params.in.initial_state_kv, n, hv, state.s, state.ld);
    }
  }

  const auto scale = static_cast<float>(p.scale);
  for (std::int64_t t = 0; t < seq.length; ++t) {
    load_token(head, gate, beta_v, params.in, p, z, t, w);
    step_state(w, z, scale, state.s, state.ld);
    if (norm.weight.defined()) normalise_output(norm, out_gate, z, t, w);
    store_rows(w.o, z.v_pad, 1, z.v, out.from(t));
    if (per_token) {
      const std::int64_t target = slot_at(pool.slots, n, t);
      if (target >= 0) store_slot(state.s, pool.pool_kv, target, hv, z);
    }
  }
  if (direct) return;
  if (pooled && !per_token && slot >= 0) store_slot(state.s, pool.pool_kv, slot, hv, z);
  if (params.final_state_kv.defined()) store_state(state.s, z.ld_v, params.final_state_kv, n, hv);
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
