// Brings the rows of one chunk into computable form: packed or in place, normalised, activated.
#include "cpu/chunk_call.h"
#include "cpu/chunk_factors-inl.h"

#if defined(KDA_CPU_CHUNK_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CHUNK_LOAD_INL_H_
#undef KDA_CPU_CHUNK_LOAD_INL_H_
#else
#define KDA_CPU_CHUNK_LOAD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Copies of a chunk's rows, used where the tensors cannot be read in place.
struct ChunkCopies {
  float* q;       // [16][ld_k]
  float* k;       // [16][ld_k]
  float* v;       // [16][ld_v]
  float* g;       // [16][ld_k]
  float* alpha;   // [16][ld_k]
  float* q_rstd;  // [16]
  float* k_rstd;  // [16]
};

inline ChunkCopies plan_copies(Planner* planner, const ChunkSizes& s) {
  ChunkCopies c{};
  c.q = planner->floats(kChunk * s.ld_k);
  c.k = planner->floats(kChunk * s.ld_k);
  c.v = planner->floats(kChunk * s.ld_v);
  c.g = planner->floats(kChunk * s.ld_k);
  c.alpha = planner->floats(kChunk * s.ld_k);
  c.q_rstd = planner->floats(kChunk);
  c.k_rstd = planner->floats(kChunk);
  return c;
}

struct ChunkRows {
  Block q, k, v, g;
};

// Rows [t, t + count) of a head; missing rows of the chunk are 0. Fills c.alpha, f.beta
// and f.g_sum.
inline HWY_NOINLINE ChunkRows load_chunk(const HeadInputs& head, const HeadGate& gate,
                                         const OperatorInputs& in, const core::Problem& p,
                                         const ChunkSizes& s, std::int64_t t, std::size_t count,
                                         const ChunkCopies& c, const ChunkFactors& f) {
  float* beta = f.beta;
  ChunkRows rows;
  // q and k are read channel by channel later, so they are always packed: with a power-of-two
  // token stride all rows of a tensor share a few cache sets.
  load_rows(head.q.from(t), count, s.k, s.k_pad, c.q, s.ld_k);
  load_rows(head.k.from(t), count, s.k, s.k_pad, c.k, s.ld_k);
  if (in.qk_l2norm) {
    const bool bf16 = p.io == DType::kBF16;
    normalise_rows(c.q, s.ld_k, count, s.k_pad, bf16, c.q_rstd);
    normalise_rows(c.k, s.ld_k, count, s.k_pad, bf16, c.k_rstd);
  }
  fill_rows(c.q + count * s.ld_k, s.ld_k, kChunk - count, s.k_pad, 0.0F);
  fill_rows(c.k + count * s.ld_k, s.ld_k, kChunk - count, s.k_pad, 0.0F);
  rows.q = {c.q, s.ld_k};
  rows.k = {c.k, s.ld_k};
  rows.v = block_of(head.v.from(t), count, kChunk, s.v, s.v_pad, c.v, s.ld_v);
  rows.g = block_of(head.g.from(t), count, count, s.k, s.k_pad, c.g, s.ld_k);
  decay_rows(rows.g, gate, count, s.k_pad, c.alpha, s.ld_k, f.g_sum);

  for (std::size_t i = 0; i < kChunk; ++i) {
    beta[i] = i < count ? load_element(head.beta.from(t + static_cast<std::int64_t>(i)).data,
                                       head.beta.dtype)
                        : 0.0F;
  }
  if (p.beta_is_logit) {
    const Vec top = splat(static_cast<float>(in.beta_max));
    for (std::size_t i = 0; i < kChunk; i += kLanes) {
      store(hn::Mul(top, sigmoid(load(beta + i))), beta + i);
    }
    for (std::size_t i = count; i < kChunk; ++i)
      beta[i] = 0.0F;
  }
  return rows;
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
