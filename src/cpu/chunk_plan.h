// Sizes and scratch arrays of the chunk kernels, the same for every instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/scratch.h"

namespace kda::cpu {

// Tokens per internal chunk, whatever chunk size the caller names: the recurrence costs 6 K V
// FLOPs per token in any case and a longer chunk only adds 8 C K.
inline constexpr std::size_t kChunk = 16;
// Rows of a register tile. Tiles of 4 x 2 vectors hide the latency of two FMA pipes on every
// target, with or without 32 registers.
inline constexpr int kTileRows = 4;
// Chunks per block between two state checkpoints.
inline constexpr std::size_t kBlockTokens = kStateBlockTokens;
inline constexpr std::size_t kBlockChunks = kBlockTokens / kChunk;

// The gate of one value head; `bias` has `width` elements, zero beyond K.
struct HeadGate {
  bool raw = false;
  bool bounded = false;
  float exp_a = 1.0F;
  float lower_bound_ln = 0.0F;
  const float* bias = nullptr;
};

// One chunk's key-side arrays. Rows of [.][ld_k] have `width` valid elements.
struct ChunkFactors {
  std::size_t ld_k;
  float* kt;     // [16][ld_k]
  float* qt;     // [16][ld_k]
  float* kh;     // [16][ld_k]
  float* kr8;    // [8][ld_k] rows 8..15 from row 8 on
  float* qr8;    // [8][ld_k]
  float* kc8;    // [8][ld_k] rows 0..7 to row 7
  float* kr4;    // [8][ld_k] rows 4..7 from row 4 on, rows 12..15 from row 12 on
  float* qr4;    // [8][ld_k]
  float* kc4;    // [8][ld_k] rows 0..3 to row 3, rows 8..11 to row 11
  float* g_sum;  // [ld_k] natural-log decay over the whole chunk
  // The chunk's decay of a state is s * fade + s * keep: keep = 1 and fade = expm1(g_sum) where
  // little decays, else keep = 0. Rounding exp(g) to f32 alone would be the same relative error at
  // every chunk and grow with their number.
  float* fade;    // [ld_k]
  float* keep;    // [ld_k]
  float* lo_neg;  // [16][16] minus the strict lower triangle
  float* n;       // [16][16] lower triangle with diagonal
  float* beta;    // [16]
};

inline ChunkFactors plan_factors(Planner* planner, std::size_t ld_k) {
  ChunkFactors f{};
  f.ld_k = ld_k;
  f.kt = planner->floats(kChunk * ld_k);
  f.qt = planner->floats(kChunk * ld_k);
  f.kh = planner->floats(kChunk * ld_k);
  for (float** rows : {&f.kr8, &f.qr8, &f.kc8, &f.kr4, &f.qr4, &f.kc4}) {
    *rows = planner->floats(kChunk / 2 * ld_k);
  }
  f.g_sum = planner->floats(ld_k);
  f.fade = planner->floats(ld_k);
  f.keep = planner->floats(ld_k);
  f.lo_neg = planner->floats(kChunk * kChunk);
  f.n = planner->floats(kChunk * kChunk);
  f.beta = planner->floats(kChunk);
  return f;
}

}  // namespace kda::cpu
