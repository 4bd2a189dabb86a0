// Chunked forward of one (sequence, query/key head) task. Form D of the chunk equations:
//   U = (I + lo)^-1 diag(beta) (v - kt S)    o = scale (qt S + n U)    S' = diag(decay) S + kh^T U
// 6 K V + O(16 (K + V)) FLOPs per token and value head; S stays in the second-level cache.
#include "cpu/chunk_load-inl.h"
#include "cpu/prefetch.h"
#include "cpu/value_tile-inl.h"

#if defined(KDA_CPU_CHUNK_FWD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CHUNK_FWD_INL_H_
#undef KDA_CPU_CHUNK_FWD_INL_H_
#else
#define KDA_CPU_CHUNK_FWD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct ForwardScratch {
  ChunkFactors factors;
  ChunkCopies copies;
  float* s;     // [k_pad][ld_v]
  float* u;     // [16][ld_v]
  float* o;     // [16][ld_v]
  float* bias;  // [k_pad]
};

inline ForwardScratch plan_forward(Planner* planner, const ChunkSizes& s) {
  ForwardScratch f{};
  f.factors = plan_factors(planner, s.ld_k);
  f.copies = plan_copies(planner, s);
  f.s = planner->floats(s.k_pad * s.ld_v);
  f.u = planner->floats(kChunk * s.ld_v);
  f.o = planner->floats(kChunk * s.ld_v);
  f.bias = planner->floats(s.k_pad);
  return f;
}

// All value tiles of one chunk; `ahead` brings in the next chunk meanwhile.
template <int kVecs>
HWY_INLINE void forward_tile(const ForwardScratch& w, const ChunkSizes& s, std::size_t rows,
                             float scale, Block v, std::size_t at, float* o, std::size_t ld_o,
                             Prefetcher* ahead, std::size_t lines) {
  ahead->advance(lines);
  solve_tile<kVecs>(w.factors, s.k, rows, {v.at + at, v.ld}, w.s + at, s.ld_v, w.u + at, s.ld_v);
  ahead->advance(lines);
  output_tile<kVecs>(w.factors, s.k, rows, scale, w.s + at, s.ld_v, w.u + at, s.ld_v, o + at, ld_o);
  ahead->advance(lines);
  update_tile<kVecs>(w.factors, s.k_pad, rows, w.u + at, s.ld_v, w.s + at, s.ld_v);
}

inline std::size_t forward_scratch_bytes(const Dims& dims) {
  Planner planner;
  plan_forward(&planner, chunk_sizes(dims, kLanes));
  return planner.bytes();
}

inline void forward_task(const ChunkForwardParams& params, const core::Problem& p,
                         std::int64_t task, void* scratch) {
  const ChunkSizes s = chunk_sizes(p.dims, kLanes);
  Planner planner(scratch);
  const ForwardScratch w = plan_forward(&planner, s);
  const auto scale = static_cast<float>(p.scale);
  const std::int64_t n = task / p.dims.H;
  const std::int64_t h = task % p.dims.H;
  const core::Sequence seq = p.sequence(n);
  for (std::int64_t hv = h * p.dims.G(); hv < (h + 1) * p.dims.G(); ++hv) {
    const HeadInputs head = head_inputs(params.in, p, seq, hv);
    const HeadGate gate = head_gate(params.in.gate, p.raw_gate, hv, s.k, s.k_pad, w.bias);
    const RowsOut out = rows_of(params.o, seq.row, seq.begin, hv);
    fill_rows(w.s, s.ld_v, s.k_pad, s.v_pad, 0.0F);
    if (params.in.initial_state_kv.defined()) {
      load_state(params.in.initial_state_kv, n, hv, w.s, s.ld_v);
    }
    for (std::int64_t t = 0; t < seq.length; t += static_cast<std::int64_t>(kChunk)) {
      const auto left = static_cast<std::size_t>(seq.length - t);
      const std::size_t count = left < kChunk ? left : kChunk;
      if (params.h_kv.defined() && t % kStateBlockTokens == 0) {
        store_state(w.s, s.ld_v, params.h_kv, seq.first_block + t / kStateBlockTokens, hv);
      }
      const ChunkRows rows = load_chunk(head, gate, params.in, p, s, t, count, w.copies, w.factors);
      chunk_factors({w.copies.alpha, s.ld_k}, rows.q, rows.k, s.k_pad, w.factors);
      const RowsOut chunk_out = out.from(t);
      const bool direct =
          chunk_out.plain_f32() && count == kChunk && s.v == s.v_pad && chunk_out.row > 0;
      float* o = direct ? reinterpret_cast<float*>(chunk_out.data) : w.o;
      const std::size_t ld_o = direct ? static_cast<std::size_t>(chunk_out.row) : s.ld_v;
      Prefetcher ahead;
      if (left > kChunk) {
        const std::size_t next = left - kChunk < kChunk ? left - kChunk : kChunk;
        const std::int64_t at = t + static_cast<std::int64_t>(kChunk);
        ahead.add(head.q.from(at), next, s.k);
        ahead.add(head.k.from(at), next, s.k);
        ahead.add(head.g.from(at), next, s.k);
        ahead.add(head.v.from(at), next, s.v);
        ahead.add(out.from(at), next, s.v, true);
      }
      const std::size_t row_tiles = (count + kTileRows - 1) / kTileRows * kTileRows;
      const std::size_t calls = 3 * (s.v_pad / kLanes + 1) / 2;
      const std::size_t lines = ahead.lines() / calls + 1;
      std::size_t at = 0;
      for (; at + 2 * kLanes <= s.v_pad; at += 2 * kLanes) {
        forward_tile<2>(w, s, row_tiles, scale, rows.v, at, o, ld_o, &ahead, lines);
      }
      for (; at < s.v_pad; at += kLanes) {
        forward_tile<1>(w, s, row_tiles, scale, rows.v, at, o, ld_o, &ahead, lines);
      }
      if (!direct) store_rows(w.o, s.ld_v, count, s.v, chunk_out);
    }
    if (params.final_state_kv.defined()) {
      store_state(w.s, s.ld_v, params.final_state_kv, n, hv);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
