// Chunked backward of one (sequence, query/key head) task: one reverse pass over blocks of 64
// tokens, each replayed from the state at its start. Per chunk, with W = v - kt S:
//   U = (I + lo)^-1 beta W                        (replay)
//   dU = kh D + n^T (scale do)    X = (I + lo)^-T dU
//   dn = tril(scale do U^T)       p = -stril(X U^T)      dv = beta X      dbeta_i += X_i . W_i
//   D <- diag(decay) D + qt^T (scale do) - kt^T (beta X)
// and bwd_intra-inl.h for q, k and the decays. With the gradients of lo and of U collapsed onto X
// neither the inverse nor a gradient of it is ever formed: 16 K V + 22 C (K + V)/2 FLOPs per token
// and value head, replay included.
#include "cpu/bwd_intra-inl.h"
#include "cpu/chunk_load-inl.h"
#include "cpu/gate-inl.h"
#include "cpu/prefetch.h"
#include "cpu/transpose-inl.h"

#if defined(KDA_CPU_CHUNK_BWD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CHUNK_BWD_INL_H_
#undef KDA_CPU_CHUNK_BWD_INL_H_
#else
#define KDA_CPU_CHUNK_BWD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What the replay of one chunk leaves for its reverse step.
struct ChunkReplay {
  ChunkFactors f;
  ChunkCopies rows;  // q, k packed and normalised; alpha; rstd
  float* w;          // [16][ld_v]
  float* u;          // [16][ld_v]
  float* s_vk;       // [v_pad][ld_k], the state at its start
};

struct BackwardScratch {
  ChunkReplay chunk[kBlockChunks];
  float* snapshots;  // [blocks][G][v_pad][ld_k] states at block starts, when h_kv is absent
  float* d_vk;       // [G][v_pad][ld_k] gradient of the state
  float* by_key;     // [k_pad][16] kt or kh transposed
  float* by_token;   // [v_pad][16]
  float* d_o;        // [16][ld_v] copy of the tensor's rows
  float* d_u;        // [16][ld_v]
  float* x;          // [16][ld_v]
  float* left;       // [32][ld_v] -beta X, then scale do
  float* d_n;        // [16][16]
  float* p;          // [16][16]
  float* p_beta;     // [16][16]
  float* from_s;     // [32][ld_k] left S
  float* from_d;     // [16][ld_k] U D
  float* state_dot;  // [ld_k]
  float* dq;         // [64][ld_k] of a block, folded over the value heads
  float* dk;         // [64][ld_k]
  float* dg;         // [16][ld_k]
  float* g_raw;      // [16][ld_k]
  float* row_k;      // [16][kLanes]
  float* d_beta;     // [64]
  float* bias;       // [ld_k]
  float* d_bias;     // [ld_k] sums over one block
  float* d_a;        // [ld_k]
};

inline std::size_t state_floats(const ChunkSizes& s) { return s.v_pad * s.ld_k; }

inline BackwardScratch plan_backward(Planner* planner, const ChunkSizes& s, std::size_t groups,
                                     std::size_t snapshot_blocks) {
  BackwardScratch b{};
  for (ChunkReplay& c : b.chunk) {
    c.f = plan_factors(planner, s.ld_k);
    c.rows = plan_copies(planner, s);
    c.w = planner->floats(kChunk * s.ld_v);
    c.u = planner->floats(kChunk * s.ld_v);
    c.s_vk = planner->floats(state_floats(s));
  }
  b.snapshots = planner->floats(snapshot_blocks * groups * state_floats(s));
  b.d_vk = planner->floats(groups * state_floats(s));
  b.by_key = planner->floats(s.k_pad * kChunk);
  b.by_token = planner->floats(s.v_pad * kChunk);
  for (float** rows : {&b.d_o, &b.d_u, &b.x})
    *rows = planner->floats(kChunk * s.ld_v);
  b.left = planner->floats(2 * kChunk * s.ld_v);
  for (float** square : {&b.d_n, &b.p, &b.p_beta})
    *square = planner->floats(kChunk * kChunk);
  b.from_s = planner->floats(2 * kChunk * s.ld_k);
  for (float** rows : {&b.dq, &b.dk})
    *rows = planner->floats(kBlockTokens * s.ld_k);
  for (float** rows : {&b.from_d, &b.dg, &b.g_raw})
    *rows = planner->floats(kChunk * s.ld_k);
  b.row_k = planner->floats(kChunk * kLanes);
  b.d_beta = planner->floats(kBlockTokens);
  for (float** row : {&b.state_dot, &b.bias, &b.d_bias, &b.d_a})
    *row = planner->floats(s.ld_k);
  return b;
}

// Longest snapshot list that a task needs.
inline std::size_t backward_scratch_bytes(const Dims& dims, std::size_t snapshot_blocks) {
  Planner planner;
  plan_backward(&planner, chunk_sizes(dims, kLanes), static_cast<std::size_t>(dims.G()),
                snapshot_blocks);
  return planner.bytes();
}

// One task and everything it needs at hand.
struct BackwardTask {
  const ChunkBackwardParams* params;
  const core::Problem* p;
  ChunkSizes s;
  BackwardScratch w;
  std::int64_t n;
  core::Sequence seq;
  float scale;
};

// s_vk = 0 beyond K and V, else the [K][V] state with any strides.
HWY_INLINE void load_transposed(const ConstTensorView& view, std::int64_t n, std::int64_t hv,
                                const ChunkSizes& s, float* s_vk) {
  fill_rows(s_vk, s.ld_k, s.v_pad, s.k_pad, 0.0F);
  if (!view.defined()) return;
  const float* from = state_at(view, n, hv);
  if (view.stride[3] == 1 && view.stride[2] > 0) {
    transpose(from, static_cast<std::size_t>(view.stride[2]), s.k, s.v, s_vk, s.ld_k);
    return;
  }
  for (std::size_t v = 0; v < s.v; ++v) {
    for (std::size_t k = 0; k < s.k; ++k) {
      s_vk[v * s.ld_k + k] = from[static_cast<std::int64_t>(k) * view.stride[2] +
                                  static_cast<std::int64_t>(v) * view.stride[3]];
    }
  }
}

// Brings chunk `c` (tokens t..) into its replay slot and computes U; advances the state into
// `next` unless that is null.
HWY_INLINE void replay_chunk(const BackwardTask& task, const HeadInputs& head, const HeadGate& gate,
                             std::int64_t t, const ChunkReplay& c, float* next) {
  const ChunkSizes& s = task.s;
  const std::int64_t left = task.seq.length - t;
  const std::size_t count =
      left < static_cast<std::int64_t>(kChunk) ? static_cast<std::size_t>(left) : kChunk;
  const ChunkRows rows = load_chunk(head, gate, task.params->in, *task.p, s, t, count, c.rows, c.f);
  chunk_factors({c.rows.alpha, s.ld_k}, rows.q, rows.k, s.k_pad, c.f);
  transpose(c.f.kt, s.ld_k, kChunk, s.k_pad, task.w.by_key, kChunk);
  multiply({c.s_vk, s.ld_k}, s.v_pad, s.k, {task.w.by_key, kChunk}, kChunk,
           {task.w.by_token, kChunk});
  transpose(task.w.by_token, kChunk, s.v_pad, kChunk, c.w, s.ld_v);
  solve_forward(c.f, s.v_pad, rows.v, {c.w, s.ld_v}, {c.u, s.ld_v});
  if (next != nullptr) {
    advance_state(c.f, s.k_pad, c.u, s.ld_v, s.v_pad, c.s_vk, next);
  }
}

HWY_INLINE float row_product(const float* a, const float* b, std::size_t width) {
  Vec sum = zero();
  for (std::size_t d = 0; d < width; d += kLanes) {
    sum = hn::MulAdd(load(a + d), load(b + d), sum);
  }
  return lane_sum(sum);
}

// dn = tril(scale do U^T), p = -stril(X U^T), both zero above; p_beta = diag(beta) p.
HWY_INLINE void triangle_gradients(const BackwardScratch& w, const ChunkReplay& c,
                                   const ChunkSizes& s) {
  for (std::size_t i = 0; i < kChunk; i += 4) {
    dots({w.left + (kChunk + i) * s.ld_v, s.ld_v}, 4, {c.u, s.ld_v}, i + 4, s.v_pad,
         w.d_n + i * kChunk, kChunk);
    dots({w.x + i * s.ld_v, s.ld_v}, 4, {c.u, s.ld_v}, i + 4, s.v_pad, w.p + i * kChunk, kChunk);
  }
  for (std::size_t i = 0; i < kChunk; ++i) {
    for (std::size_t j = 0; j < kChunk; ++j) {
      const std::size_t at = i * kChunk + j;
      if (j > i) w.d_n[at] = 0.0F;
      w.p[at] = j < i ? -w.p[at] : 0.0F;
      w.p_beta[at] = j < i ? c.f.beta[i] * w.p[at] : 0.0F;
    }
  }
}

// The gate's own backward on the rows of one chunk: dg becomes the gradient of g_raw.
HWY_INLINE void gate_rows_backward(const BackwardTask& task, const HeadInputs& head,
                                   const HeadGate& gate, std::int64_t t, std::size_t count) {
  const ChunkSizes& s = task.s;
  const BackwardScratch& w = task.w;
  load_rows(head.g.from(t), count, s.k, s.k_pad, w.g_raw, s.ld_k);
  for (std::size_t i = count; i > 0;) {
    --i;
    for (std::size_t d = 0; d < s.k_pad; d += kLanes) {
      const Vec dg = load(w.dg + i * s.ld_k + d);
      const GateSlopes slopes = gate_slopes(gate, load(w.g_raw + i * s.ld_k + d), d);
      const Vec dx = hn::Mul(dg, slopes.dx);
      store(dx, w.dg + i * s.ld_k + d);
      store(hn::Add(load(w.d_bias + d), dx), w.d_bias + d);
      store(hn::MulAdd(dg, slopes.da_log, load(w.d_a + d)), w.d_a + d);
    }
  }
}

// What the next reverse step and the next block's replay will read, and what this step will write.
HWY_INLINE Prefetcher upcoming_rows(const BackwardTask& task, const HeadInputs& head,
                                    std::int64_t hv, std::int64_t t, std::size_t count) {
  const ChunkSizes& s = task.s;
  const ChunkBackwardParams& params = *task.params;
  const std::int64_t row = task.seq.row;
  const std::int64_t begin = task.seq.begin;
  const auto chunk = static_cast<std::int64_t>(kChunk);
  Prefetcher ahead;
  ahead.add(rows_of(params.dv, row, begin, hv).from(t), count, s.v, true);
  ahead.add(rows_of(params.dg, row, begin, hv).from(t), count, s.k, true);
  ahead.add(rows_of(params.dq, row, begin, hv / task.p->dims.G()).from(t), count, s.k, true);
  ahead.add(rows_of(params.dk, row, begin, hv / task.p->dims.G()).from(t), count, s.k, true);
  if (t >= chunk) {
    ahead.add(rows_of(params.d_o, row, begin, hv).from(t - chunk), kChunk, s.v);
  }
  if (t >= kStateBlockTokens) {
    ahead.add(head.q.from(t - kStateBlockTokens), kChunk, s.k);
    ahead.add(head.k.from(t - kStateBlockTokens), kChunk, s.k);
    ahead.add(head.v.from(t - kStateBlockTokens), kChunk, s.v);
    ahead.add(head.g.from(t - kStateBlockTokens), kChunk, s.k);
  }
  return ahead;
}

// The reverse step of one chunk; `d_vk` goes from its end to its start.
HWY_INLINE void reverse_chunk(const BackwardTask& task, const HeadInputs& head,
                              const HeadGate& gate, std::int64_t hv, std::int64_t t,
                              const ChunkReplay& c, float* d_vk, bool add) {
  const ChunkSizes& s = task.s;
  const BackwardScratch& w = task.w;
  const ChunkBackwardParams& params = *task.params;
  const std::int64_t left = task.seq.length - t;
  const std::size_t count =
      left < static_cast<std::int64_t>(kChunk) ? static_cast<std::size_t>(left) : kChunk;
  Prefetcher ahead = upcoming_rows(task, head, hv, t, count);
  const std::size_t lines = ahead.lines() / 6 + 1;
  float* scaled_do = w.left + kChunk * s.ld_v;
  if (params.d_o.defined()) {
    const Block d_o = block_of(rows_of(params.d_o, task.seq.row, task.seq.begin, hv).from(t), count,
                               kChunk, s.v, s.v_pad, w.d_o, s.ld_v);
    for (std::size_t i = 0; i < kChunk; ++i) {
      for (std::size_t v = 0; v < s.v_pad; v += kLanes) {
        store(hn::Mul(splat(task.scale), load(d_o.at + i * d_o.ld + v)),
              scaled_do + i * s.ld_v + v);
      }
    }
  } else {
    fill_rows(scaled_do, s.ld_v, kChunk, s.v_pad, 0.0F);
  }

  ahead.advance(lines);
  transpose(c.f.kh, s.ld_k, kChunk, s.k_pad, w.by_key, kChunk);
  multiply({d_vk, s.ld_k}, s.v_pad, s.k, {w.by_key, kChunk}, kChunk, {w.by_token, kChunk});
  transpose(w.by_token, kChunk, s.v_pad, kChunk, w.d_u, s.ld_v);
  ahead.advance(lines);
  solve_backward(c.f, s.v_pad, {scaled_do, s.ld_v}, {w.d_u, s.ld_v}, {w.x, s.ld_v},
                 {w.left, s.ld_v});
  triangle_gradients(w, c, s);
  ahead.advance(lines);
  multiply({w.left, s.ld_v}, 2 * kChunk, s.v, {c.s_vk, s.ld_k}, s.k_pad, {w.from_s, s.ld_k});
  ahead.advance(lines);
  multiply({c.u, s.ld_v}, kChunk, s.v, {d_vk, s.ld_k}, s.k_pad, {w.from_d, s.ld_k});
  ahead.advance(lines);
  retreat_state(c.f, s.k_pad, {w.left, s.ld_v}, s.v_pad, c.s_vk, d_vk, w.state_dot);

  const std::size_t row = static_cast<std::size_t>(t % kStateBlockTokens);
  fill_rows(w.row_k, kLanes, kChunk, kLanes, 0.0F);
  const IntraInputs in = {&c.f,     c.rows.alpha, c.rows.q,
                          c.rows.k, w.d_n,        w.p,
                          w.p_beta, w.from_s,     w.from_s + kChunk * s.ld_k,
                          w.from_d, w.state_dot};
  ahead.advance(lines);
  intra_backward(in, {w.dq + row * s.ld_k, w.dk + row * s.ld_k, w.dg, w.row_k, add}, s.k_pad);

  for (std::size_t i = 0; i < count; ++i) {
    w.d_beta[row + i] = row_product(w.x + i * s.ld_v, c.w + i * s.ld_v, s.v_pad) +
                        lane_sum(load(w.row_k + i * kLanes));
  }
  if (params.dv.defined()) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t v = 0; v < s.v_pad; v += kLanes) {
        store(hn::Neg(load(w.left + i * s.ld_v + v)), w.d_u + i * s.ld_v + v);
      }
    }
    store_rows(w.d_u, s.ld_v, count, s.v,
               rows_of(params.dv, task.seq.row, task.seq.begin, hv).from(t));
  }
  if (gate.raw) gate_rows_backward(task, head, gate, t, count);
  if (params.dg.defined()) {
    store_rows(w.dg, s.ld_k, count, s.k,
               rows_of(params.dg, task.seq.row, task.seq.begin, hv).from(t));
  }
}

// dbeta of the tokens of one block, through the sigmoid where the call has one.
HWY_INLINE void store_beta_gradient(const BackwardTask& task, const HeadInputs& head,
                                    std::int64_t hv, std::int64_t t, std::size_t count) {
  if (!task.params->dbeta.defined()) return;
  const RowsOut out = rows_of(task.params->dbeta, task.seq.row, task.seq.begin, hv).from(t);
  float* d = task.w.d_beta;
  if (task.p->beta_is_logit) {
    for (std::size_t i = 0; i < count; ++i) {
      const float z =
          load_element(head.beta.from(t + static_cast<std::int64_t>(i)).data, head.beta.dtype);
      const Vec slope = hn::Mul(splat(static_cast<float>(task.params->in.beta_max)),
                                sigmoid_with_slope(splat(z)).slope);
      d[i] *= hn::GetLane(slope);
    }
  }
  store_rows(d, 1, count, 1, out);
}

// dx = rstd (dy - (dy . y) y) in place, y the rounded normalised rows.
HWY_INLINE void normalise_rows_backward(float* dy, const float* y, std::size_t ld,
                                        std::size_t count, std::size_t width, const float* rstd) {
  for (std::size_t i = 0; i < count; ++i) {
    const Vec along = splat(row_product(dy + i * ld, y + i * ld, width));
    for (std::size_t d = 0; d < width; d += kLanes) {
      const Vec across = hn::NegMulAdd(along, load(y + i * ld + d), load(dy + i * ld + d));
      store(hn::Mul(splat(rstd[i]), across), dy + i * ld + d);
    }
  }
}

// The states at the starts of all blocks, for calls without h_kv.
HWY_INLINE void record_snapshots(const BackwardTask& task, const HeadInputs& head,
                                 const HeadGate& gate, std::int64_t hv, std::size_t group,
                                 std::size_t groups) {
  const ChunkSizes& s = task.s;
  const ChunkReplay& c = task.w.chunk[0];
  load_transposed(task.params->in.initial_state_kv, task.n, hv, s, c.s_vk);
  for (std::int64_t t = 0; t < task.seq.length; t += static_cast<std::int64_t>(kChunk)) {
    if (t % kStateBlockTokens == 0) {
      const auto block = static_cast<std::size_t>(t / kStateBlockTokens);
      float* to = task.w.snapshots + (block * groups + group) * state_floats(s);
      for (std::size_t i = 0; i < state_floats(s); i += kLanes)
        store(load(c.s_vk + i), to + i);
    }
    replay_chunk(task, head, gate, t, c, c.s_vk);
  }
}

// One block of one value head.
HWY_INLINE void backward_block(const BackwardTask& task, const HeadInputs& head,
                               const HeadGate& gate, std::int64_t hv, std::int64_t block,
                               std::size_t group, std::size_t groups) {
  const ChunkSizes& s = task.s;
  const std::int64_t begin = block * kStateBlockTokens;
  const std::int64_t left = task.seq.length - begin;
  const std::int64_t length = left < kStateBlockTokens ? left : kStateBlockTokens;
  const auto chunks = (static_cast<std::size_t>(length) + kChunk - 1) / kChunk;
  const ChunkReplay* chunk = task.w.chunk;
  if (task.params->h_kv.defined()) {
    load_transposed(task.params->h_kv, task.seq.first_block + block, hv, s, chunk[0].s_vk);
  } else {
    const std::size_t at = static_cast<std::size_t>(block) * groups + group;
    const float* from = task.w.snapshots + at * state_floats(s);
    for (std::size_t i = 0; i < state_floats(s); i += kLanes) {
      store(load(from + i), chunk[0].s_vk + i);
    }
  }
  for (std::size_t c = 0; c < chunks; ++c) {
    replay_chunk(task, head, gate, begin + static_cast<std::int64_t>(c * kChunk), chunk[c],
                 c + 1 < chunks ? chunk[c + 1].s_vk : nullptr);
  }
  float* d_vk = task.w.d_vk + group * state_floats(s);
  for (std::size_t c = chunks; c-- > 0;) {
    reverse_chunk(task, head, gate, hv, begin + static_cast<std::int64_t>(c * kChunk), chunk[c],
                  d_vk, group > 0);
  }
  store_beta_gradient(task, head, hv, begin, static_cast<std::size_t>(length));
}

// dq and dk of one block, folded over the group, to the tensors.
HWY_INLINE void store_key_gradients(const BackwardTask& task, std::int64_t h, std::int64_t begin) {
  const ChunkSizes& s = task.s;
  const std::int64_t left = task.seq.length - begin;
  const auto length = static_cast<std::size_t>(left < kStateBlockTokens ? left : kStateBlockTokens);
  if (task.params->in.qk_l2norm) {
    for (std::size_t i = 0; i < length; i += kChunk) {
      const ChunkCopies& rows = task.w.chunk[i / kChunk].rows;
      const std::size_t count = length - i < kChunk ? length - i : kChunk;
      normalise_rows_backward(task.w.dq + i * s.ld_k, rows.q, s.ld_k, count, s.k_pad, rows.q_rstd);
      normalise_rows_backward(task.w.dk + i * s.ld_k, rows.k, s.ld_k, count, s.k_pad, rows.k_rstd);
    }
  }
  if (task.params->dq.defined()) {
    store_rows(task.w.dq, s.ld_k, length, s.k,
               rows_of(task.params->dq, task.seq.row, task.seq.begin, h).from(begin));
  }
  if (task.params->dk.defined()) {
    store_rows(task.w.dk, s.ld_k, length, s.k,
               rows_of(task.params->dk, task.seq.row, task.seq.begin, h).from(begin));
  }
}

// `sums` has K + 1 doubles for every value head, set to 0: the sequence's d_dt_bias and da_log.
inline void backward_task(const ChunkBackwardParams& params, const core::Problem& p,
                          std::int64_t index, std::size_t snapshot_blocks, void* scratch,
                          double* sums) {
  const auto groups = static_cast<std::size_t>(p.dims.G());
  BackwardTask task{&params, &p, chunk_sizes(p.dims, kLanes), {}, index / p.dims.H, {}, 0.0F};
  const ChunkSizes& s = task.s;
  Planner planner(scratch);
  task.w = plan_backward(&planner, s, groups, snapshot_blocks);
  task.seq = p.sequence(task.n);
  task.scale = static_cast<float>(p.scale);
  const std::int64_t h = index % p.dims.H;
  const std::int64_t first = h * p.dims.G();

  for (std::size_t g = 0; g < groups; ++g) {
    const std::int64_t hv = first + static_cast<std::int64_t>(g);
    load_transposed(params.d_final_state_kv, task.n, hv, s, task.w.d_vk + g * state_floats(s));
    if (!params.h_kv.defined()) {
      const HeadGate gate = head_gate(params.in.gate, p.raw_gate, hv, s.k, s.k_pad, task.w.bias);
      record_snapshots(task, head_inputs(params.in, p, task.seq, hv), gate, hv, g, groups);
    }
  }
  const std::int64_t blocks = (task.seq.length + kStateBlockTokens - 1) / kStateBlockTokens;
  for (std::int64_t block = blocks; block-- > 0;) {
    for (std::size_t g = 0; g < groups; ++g) {
      const std::int64_t hv = first + static_cast<std::int64_t>(g);
      const HeadInputs head = head_inputs(params.in, p, task.seq, hv);
      const HeadGate gate = head_gate(params.in.gate, p.raw_gate, hv, s.k, s.k_pad, task.w.bias);
      fill_rows(task.w.d_bias, s.ld_k, 1, s.k_pad, 0.0F);
      fill_rows(task.w.d_a, s.ld_k, 1, s.k_pad, 0.0F);
      backward_block(task, head, gate, hv, block, g, groups);
      if (gate.raw) {
        double* sum = sums + static_cast<std::size_t>(hv) * (s.k + 1);
        for (std::size_t d = 0; d < s.k; ++d) {
          sum[d] += static_cast<double>(task.w.d_bias[d]);
          sum[s.k] += static_cast<double>(task.w.d_a[d]);
        }
      }
    }
    store_key_gradients(task, h, block * kStateBlockTokens);
  }
  if (!params.d_initial_state_kv.defined()) return;
  for (std::size_t g = 0; g < groups; ++g) {
    const TensorView by_value = params.d_initial_state_kv.transposed(2, 3);
    store_state(task.w.d_vk + g * state_floats(s), s.ld_k, by_value, task.n,
                first + static_cast<std::int64_t>(g));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
