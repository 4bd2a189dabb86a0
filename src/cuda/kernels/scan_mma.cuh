// The two scans over chunks with tensor cores; factors from prep_mma.cuh, the same math as
// scan_simt.cuh.
//
// The state is held transposed, S^T [V,K]: a warp owns 16 value columns and keeps their f32 state
// in accumulators for the whole sequence; rounded to bf16 they are the A operand of the next
// products, so the state never visits shared memory. Factors arrive one chunk ahead (cp.async,
// two stages).
//   forward:  Z^T = beta (v^T - S^T kt^T),  U^T = Z^T a^T,  o^T = S^T qt^T + U^T n^T,
//             S^T = S^T decay + U^T kh
//   reverse:  dU^T = D^T kh^T + do^T n,  X^T = dU^T a,  D^T = D^T decay + do^T qt - beta X^T kt
// (The products with a are not folded into kh and qt: with nearly equal keys A cancels, and folded
// factors would carry that cancellation as rounding errors outside the span of the keys.)
// Inputs: factors (bf16), v or do (bf16, f16), initial or final state gradient (f32).
// Outputs: forward o, h at chunk starts (bf16 or f32), final state; reverse X, dv, D at chunk ends,
// gradient of the initial state.
// Grid: N * HV * ceil(V / (16 kWarps)) blocks of 32 kWarps threads.
// Shared memory at K = 128, 8 warps: 2 x (3 x 16 + 2 x 8 + 16 + 0.75) KiB = 161.5 KiB.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/tile/chunk.cuh"
#include "cuda/tile/rows.cuh"

namespace kda::cuda {

// Rows of 32 values are not padded.
template <int kCols>
inline constexpr int kValuePitch = kCols >= 64 ? kPitch<kCols> : kCols;

template <int kK, int kWarps>
struct ScanStage {
  alignas(512) std::uint16_t kt[kC * kPitch<kK>];
  alignas(512) std::uint16_t qt[kC * kPitch<kK>];
  alignas(512) std::uint16_t kh[kC * kPitch<kK>];
  alignas(256) std::uint16_t n[kC * kC];
  alignas(256) std::uint16_t a[kC * kC];
  alignas(256) std::uint16_t v[kC * kValuePitch<16 * kWarps>];  // v or do
  alignas(16) float decay[kK];
  alignas(16) float beta[kC];
};

// Two stages do not fit at K = 256: there a chunk is loaded when the last one has been read.
template <int kK>
inline constexpr int kScanStages = kK <= 128 ? 2 : 1;

template <int kK, int kWarps>
struct ScanSmem {
  ScanStage<kK, kWarps> stage[kScanStages<kK>];
};

// Byte offset inside the v tile. Rows of 32 elements have 4 pieces: spread over row parity.
template <int kCols>
__device__ inline std::uint32_t value_offset(int row, int piece) {
  if constexpr (kCols >= 64) {
    return swizzled<kCols>(row, piece);
  } else {
    return static_cast<std::uint32_t>(row * (kCols * 2) + (piece ^ ((row >> 1) & 3)) * 16);
  }
}

// Copies [64, kCols] contiguous 16-bit elements into a swizzled tile.
template <int kCols, int kThreads>
__device__ inline void copy_tile(const void* from, std::uint32_t to) {
  constexpr int kPieces = kCols / 8;
  constexpr int kStep = kThreads / kPieces;  // rows per round
  if constexpr (kThreads % kPieces != 0) {
    for (int e = threadIdx.x; e < kC * kPieces; e += kThreads) {
      ptx::cp_async(to + swizzled<kCols>(e / kPieces, e % kPieces),
                    static_cast<const uint4*>(from) + e);
    }
    return;
  }
  const int i = threadIdx.x / kPieces;
  const int piece = threadIdx.x % kPieces;
  const auto* source = static_cast<const uint4*>(from) + threadIdx.x;
  if constexpr (kStep % 8 == 0) {  // the swizzle repeats after 8 rows
    to += swizzled<kCols>(i, piece);
#pragma unroll
    for (int round = 0; round < (kC + kStep - 1) / kStep; ++round) {
      if (kC % kStep != 0 && i + round * kStep >= kC) break;
      ptx::cp_async(to + round * kStep * kPitch<kCols> * 2, source + round * kThreads);
    }
  } else {
#pragma unroll
    for (int round = 0; round < (kC + kStep - 1) / kStep; ++round) {
      if (kC % kStep != 0 && i + round * kStep >= kC) break;
      ptx::cp_async(to + swizzled<kCols>(i + round * kStep, piece), source + round * kThreads);
    }
  }
}

// A piece that cannot be copied as it is: unaligned or cut by V. Out of line: rare.
static __device__ __noinline__ void copy_piece_slow(const Tensor& v, std::int64_t offset, int d,
                                                    int V, std::uint32_t at) {
  float x[8];
  load8(v, offset, d, V, x);
  std::uint32_t w[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    if (v.elem == Elem::kF16) {  // as f16 bits, since convert_values comes later
      const __half2 pair = __floats2half2_rn(x[2 * p], x[2 * p + 1]);
      w[p] = *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      w[p] = pack_bf16(x[2 * p], x[2 * p + 1]);
    }
  }
  ptx::store_shared(at, make_uint4(w[0], w[1], w[2], w[3]));
}

// Rows of v or do. Pieces that cannot be copied as they are (unaligned, cut by V) are converted
// here; f16 pieces are converted in place after they have arrived (convert_values).
template <int kWarps>
__device__ inline void copy_values(const Tensor& v, const Chunk& chunk, int hv, int v0, int V,
                                   std::uint32_t to) {
  constexpr int kCols = 16 * kWarps;
  constexpr int kPieces = kCols / 8;
  for (int e = threadIdx.x; e < kC * kPieces; e += 32 * kWarps) {
    const int i = e / kPieces;
    const int d = v0 + e % kPieces * 8;
    const std::uint32_t at = to + value_offset<kCols>(i, e % kPieces);
    const std::int64_t offset = chunk.row * v.s0 + (chunk.begin + i) * v.s1 + hv * v.s2;
    if (i >= chunk.length || d >= V || v.data == nullptr) {
      ptx::store_shared(at, make_uint4(0, 0, 0, 0));
    } else if (v.vector && d + 8 <= V) {
      ptx::cp_async(at, static_cast<const std::uint16_t*>(v.data) + offset + d);
    } else {
      copy_piece_slow(v, offset, d, V, at);
    }
  }
}

// f16 to bf16, each thread the pieces that it copied itself.
template <int kWarps>
__device__ inline void convert_values(std::uint32_t tile) {
  constexpr int kCols = 16 * kWarps;
  constexpr int kPieces = kCols / 8;
  for (int e = threadIdx.x; e < kC * kPieces; e += 32 * kWarps) {
    const std::uint32_t at = tile + value_offset<kCols>(e / kPieces, e % kPieces);
    const uint4 x = ptx::load_shared(at);
    std::uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&w[p]));
      w[p] = pack_bf16(pair.x, pair.y);
    }
    ptx::store_shared(at, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

template <int kK, int kWarps>
__device__ inline void load_stage(const ChunkArgs& args, const Tensor& v, const Chunk& chunk,
                                  std::int64_t tile, int hv, int v0, ScanStage<kK, kWarps>* stage,
                                  bool with_output) {
  constexpr int kThreads = 32 * kWarps;
  const std::int64_t at = tile * kC * kK;
  copy_tile<kK, kThreads>(static_cast<const std::uint16_t*>(args.factors.kt) + at,
                          smem_address(stage->kt));
  if (with_output) {
    copy_tile<kK, kThreads>(static_cast<const std::uint16_t*>(args.factors.qt) + at,
                            smem_address(stage->qt));
    copy_tile<kC, kThreads>(static_cast<const std::uint16_t*>(args.factors.n) + tile * kC * kC,
                            smem_address(stage->n));
  }
  copy_tile<kC, kThreads>(static_cast<const std::uint16_t*>(args.factors.a) + tile * kC * kC,
                          smem_address(stage->a));
  copy_tile<kK, kThreads>(static_cast<const std::uint16_t*>(args.factors.kh) + at,
                          smem_address(stage->kh));
  copy_values<kWarps>(v, chunk, hv, v0, args.shape.V, smem_address(stage->v));
  for (int e = threadIdx.x; e < kK / 4 + kC / 4; e += kThreads) {
    if (e < kK / 4) {
      ptx::cp_async(smem_address(stage->decay) + 16 * e, args.factors.decay + tile * kK + 4 * e);
    } else {
      const int b = e - kK / 4;
      ptx::cp_async(smem_address(stage->beta) + 16 * b, args.factors.beta + tile * kC + 4 * b);
    }
  }
  ptx::cp_async_commit();
}

// Where the elements of a thread's C fragments lie: value rows v, v + 8; channels d, d + 1.
struct StateLane {
  int v;   // first value row
  int c2;  // 2 c
};

// S^T accumulators from and to a [N,HV,K,V] tensor of any strides.
template <int kK>
__device__ __noinline__ void load_state_slow(const Tensor& from, std::int64_t n, int hv,
                                             StateLane at, int K, int V,
                                             float (&state)[kK / 8][4]) {
#pragma unroll
  for (int t = 0; t < kK / 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int d = 8 * t + at.c2 + x % 2;
      const int v = at.v + 8 * (x / 2);
      state[t][x] = from.data != nullptr && d < K && v < V
                        ? load(from, n * from.s0 + hv * from.s1 + d * from.s2 + v * from.s3)
                        : 0.0F;
    }
  }
}

template <int kK>
__device__ inline void load_state_acc(const Tensor& from, std::int64_t n, int hv, StateLane at,
                                      int K, int V, float (&state)[kK / 8][4]) {
  float copy[kK / 8][4];  // the accumulators themselves must never have an address
  load_state_slow<kK>(from, n, hv, at, K, V, copy);
#pragma unroll
  for (int t = 0; t < kK / 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x)
      state[t][x] = copy[t][x];
  }
}

template <int kK>
__device__ __noinline__ void store_state_slow(const Tensor& to, std::int64_t n, int hv,
                                              StateLane at, int K, int V,
                                              const float (&state)[kK / 8][4]) {
#pragma unroll
  for (int t = 0; t < kK / 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int d = 8 * t + at.c2 + x % 2;
      const int v = at.v + 8 * (x / 2);
      if (d < K && v < V) {
        store(to, n * to.s0 + hv * to.s1 + d * to.s2 + v * to.s3, state[t][x]);
      }
    }
  }
}

template <int kK>
__device__ inline void store_state_acc(const Tensor& to, std::int64_t n, int hv, StateLane at,
                                       int K, int V, const float (&state)[kK / 8][4]) {
  float copy[kK / 8][4];
#pragma unroll
  for (int t = 0; t < kK / 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x)
      copy[t][x] = state[t][x];
  }
  store_state_slow<kK>(to, n, hv, at, K, V, copy);
}

// A fragments of S^T: packed once per chunk, or where both would not fit into registers (K = 256)
// again at every use.
template <int kK>
struct StateFragments {
  static constexpr bool kStored = kK <= 128;
  const float (&state)[kK / 8][4];
  std::uint32_t packed[kStored ? kK / 16 : 1][4];

  __device__ explicit StateFragments(const float (&s)[kK / 8][4]) : state(s) {
    if constexpr (kStored) {
#pragma unroll
      for (int i = 0; i < kK / 16; ++i)
        pack(i, packed[i]);
    }
  }
  __device__ void pack(int s, std::uint32_t (&to)[4]) const {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float* pair = &state[2 * s + x / 2][2 * (x % 2)];
      to[x] = pack_bf16(pair[0], pair[1]);
    }
  }
  __device__ void get(int s, std::uint32_t (&to)[4]) const {
    if constexpr (kStored) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        to[x] = packed[s][x];
    } else {
      pack(s, to);
    }
  }
};

// The A fragments of S^T are its bf16 snapshot: 8x8 blocks are transposed and stored as rows of V.
template <int kK>
__device__ inline void store_snapshot(const Tensor& to, std::int64_t c, int hv, int v_base,
                                      int lane, int K, int V, const StateFragments<kK>& fragments) {
  const int r = lane / 4;
  const int v = v_base + 2 * (lane % 4);
  auto* at = static_cast<std::uint16_t*>(to.data) + c * to.s0 + hv * to.s1 + r * V + v;
  if (K == kK && v_base + 16 <= V && V % 2 == 0) {
    const int eight = 8 * V;
#pragma unroll
    for (int s = 0; s < kK / 16; ++s) {
      std::uint32_t frag[4];
      fragments.get(s, frag);
#pragma unroll
      for (int x = 0; x < 4; ++x) {  // (channel r; values 2c, 2c+1)
        *reinterpret_cast<std::uint32_t*>(at + (2 * s + x / 2) * eight + 8 * (x % 2)) =
            ptx::movmatrix(frag[x]);
      }
    }
    return;
  }
#pragma unroll
  for (int s = 0; s < kK / 16; ++s) {
    std::uint32_t frag[4];
    fragments.get(s, frag);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const std::uint32_t pair = ptx::movmatrix(frag[x]);
      const int d = 16 * s + 8 * (x / 2) + r;
      const int column = v + 8 * (x % 2);
      if (d >= K || column >= V) continue;
      std::uint16_t* to_pair = at + (16 * s + 8 * (x / 2)) * V + 8 * (x % 2);
      to_pair[0] = static_cast<std::uint16_t>(pair & 0xffffU);
      if (column + 1 < V) to_pair[1] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
}

// Any type, any strides; out of line.
static __device__ __noinline__ void store_tokens_slow(const Tensor& to, std::int64_t offset,
                                                      int length, int v_base, int V, int lane,
                                                      const float (&acc)[8][4]) {
  for (int t = 0; t < 8; ++t) {
    for (int x = 0; x < 4; ++x) {
      const int i = 8 * t + 2 * (lane % 4) + x % 2;
      const int v = v_base + 8 * (x / 2) + lane / 4;
      if (i < length && v < V) store(to, offset + i * to.s1 + v * to.s3, acc[t][x]);
    }
  }
}

// Rounds C fragments of a [16 values, 64 tokens] product to 16 bits, transposes them and stores
// rows of tokens.
__device__ inline void store_token_rows(const Tensor& to, std::int64_t offset, int length,
                                        int v_base, int V, int lane, const float (&acc)[8][4]) {
  if (to.elem == Elem::kF32 || !to.vector || V % 2 != 0) {
    float copy[8][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        copy[t][x] = acc[t][x];
    }
    store_tokens_slow(to, offset, length, v_base, V, lane, copy);
    return;
  }
  const int r = lane / 4;
  const int v = v_base + 2 * (lane % 4);
  auto* at = static_cast<std::uint16_t*>(to.data) + offset + r * to.s1 + v;
  const std::int64_t eight = 8 * to.s1;
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const int i = 8 * t + r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t pair;
      if (to.elem == Elem::kBF16) {
        pair = pack_bf16(acc[t][2 * half], acc[t][2 * half + 1]);
      } else {
        const __half2 x = __floats2half2_rn(acc[t][2 * half], acc[t][2 * half + 1]);
        pair = *reinterpret_cast<const std::uint32_t*>(&x);
      }
      pair = ptx::movmatrix(pair);
      if (i < length && v + 8 * half < V) {
        *reinterpret_cast<std::uint32_t*>(at + 8 * half) = pair;
      }
    }
    at += eight;
  }
}

// acc [16, 64 tokens] += S^T [16, K] tile^T, tile [64 tokens, K].
template <int kK>
__device__ inline void multiply_channels(const StateFragments<kK>& fragments, std::uint32_t tile,
                                         int lane, float (&acc)[8][4]) {
#pragma unroll
  for (int s = 0; s < kK / 16; ++s) {
    std::uint32_t frag[4];
    fragments.get(s, frag);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      std::uint32_t b[4];
      ptx::ldmatrix(b, block_address<kK>(tile, 16 * p, 16 * s, lane));
      ptx::mma_bf16(acc[2 * p], frag, b[0], b[2]);
      ptx::mma_bf16(acc[2 * p + 1], frag, b[1], b[3]);
    }
  }
}

// state [16, K] += frag [16, 64 tokens] tile, tile [64 tokens, K].
template <int kK>
__device__ inline void multiply_tokens(const std::uint32_t (&frag)[4][4], std::uint32_t tile,
                                       int lane, float (&state)[kK / 8][4]) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int p = 0; p < kK / 16; ++p) {
      std::uint32_t b[4];
      ptx::ldmatrix_trans(b, block_address<kK>(tile, 16 * s, 16 * p, lane));
      ptx::mma_bf16(state[2 * p], frag[s], b[0], b[1]);
      ptx::mma_bf16(state[2 * p + 1], frag[s], b[2], b[3]);
    }
  }
}

// A fragments [16 values, 64 tokens] of v^T from the tile of v.
template <int kWarps>
__device__ inline void load_value_frags(std::uint32_t tile, int warp, int lane,
                                        std::uint32_t (&frag)[4][4]) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    std::uint32_t x[4];
    ptx::ldmatrix_trans(x,
                        tile + value_offset<16 * kWarps>(16 * s + lane % 16, 2 * warp + lane / 16));
    frag[s][0] = x[0];
    frag[s][1] = x[2];
    frag[s][2] = x[1];
    frag[s][3] = x[3];
  }
}

// acc [16, 64 tokens i] += frag [16, 64 tokens j] tile^T for a lower triangular tile [i][j].
__device__ inline void multiply_lower(const std::uint32_t (&frag)[4][4], std::uint32_t tile,
                                      int lane, float (&acc)[8][4]) {
#pragma unroll
  for (int J = 0; J < 4; ++J) {
#pragma unroll
    for (int I = J; I < 4; ++I) {
      std::uint32_t b[4];
      ptx::ldmatrix(b, block_address<kC>(tile, 16 * I, 16 * J, lane));
      ptx::mma_bf16(acc[2 * I], frag[J], b[0], b[2]);
      ptx::mma_bf16(acc[2 * I + 1], frag[J], b[1], b[3]);
    }
  }
}

// acc [16, 64 tokens j] += frag [16, 64 tokens i] tile for a lower triangular tile [i][j].
__device__ inline void multiply_lower_transposed(const std::uint32_t (&frag)[4][4],
                                                 std::uint32_t tile, int lane, float (&acc)[8][4]) {
#pragma unroll
  for (int I = 0; I < 4; ++I) {
#pragma unroll
    for (int J = 0; J <= I; ++J) {
      std::uint32_t b[4];
      ptx::ldmatrix_trans(b, block_address<kC>(tile, 16 * I, 16 * J, lane));
      ptx::mma_bf16(acc[2 * J], frag[I], b[0], b[1]);
      ptx::mma_bf16(acc[2 * J + 1], frag[I], b[2], b[3]);
    }
  }
}

// C fragments [16, 64] to A fragments.
__device__ inline void pack_tokens(const float (&acc)[8][4], std::uint32_t (&frag)[4][4]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    frag[t / 2][2 * (t % 2)] = pack_bf16(acc[t][0], acc[t][1]);
    frag[t / 2][2 * (t % 2) + 1] = pack_bf16(acc[t][2], acc[t][3]);
  }
}

template <int kK>
__device__ inline void scale_state(const float* decay, int c2, float (&state)[kK / 8][4]) {
#pragma unroll
  for (int t = 0; t < kK / 8; ++t) {
    const float2 x = *reinterpret_cast<const float2*>(decay + 8 * t + c2);
    state[t][0] *= x.x;
    state[t][1] *= x.y;
    state[t][2] *= x.x;
    state[t][3] *= x.y;
  }
}

__device__ inline Chunk chunk_of(const SequenceSpan& seq, std::int64_t local) {
  const std::int64_t left = seq.length - local * kC;
  return {seq.row, seq.begin + local * kC, static_cast<int>(left < kC ? left : kC)};
}

template <int kK, int kWarps, bool kOutput>
__global__ void __launch_bounds__(32 * kWarps, 1)
    scan_fwd_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<ScanSmem<kK, kWarps>*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + 16 * kWarps - 1) / (16 * kWarps);
  const int v0 = static_cast<int>(blockIdx.x % slices) * 16 * kWarps;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t seq_index = blockIdx.x / slices / HV;
  const SequenceSpan seq = sequence_at(args.map, seq_index);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int c2 = 2 * (lane % 4);
  const int v_base = v0 + 16 * warp;
  const StateLane at{v_base + lane / 4, c2};

  float state[kK / 8][4];
  load_state_acc<kK>(args.in.initial_state, seq_index, hv, at, K, V, state);
  const std::int64_t num_chunks = (seq.length + kC - 1) / kC;
  constexpr int kStages = kScanStages<kK>;
  const auto load_chunk = [&](std::int64_t local) {
    load_stage<kK, kWarps>(args, args.in.v, chunk_of(seq, local),
                           (seq.first_chunk + local) * HV + hv, hv, v0, &s.stage[local % kStages],
                           kOutput);
  };
  if (kStages > 1 && num_chunks > 0) load_chunk(0);
  for (std::int64_t local = 0; local < num_chunks; ++local) {
    ScanStage<kK, kWarps>& stage = s.stage[local % kStages];
    const std::int64_t c = seq.first_chunk + local;
    const Chunk chunk = chunk_of(seq, local);
    if constexpr (kStages == 1) {
      __syncthreads();  // the last chunk has been read
      load_chunk(local);
    }
    ptx::cp_async_wait<0>();
    if (args.in.v.elem == Elem::kF16) convert_values<kWarps>(smem_address(stage.v));
    __syncthreads();  // this stage is complete; the other one has been read
    if (kStages > 1 && local + 1 < num_chunks) load_chunk(local + 1);
    const StateFragments<kK> frag(state);
    if (args.h.data != nullptr) {
      if (args.h.elem == Elem::kBF16) {
        store_snapshot<kK>(args.h, c, hv, v_base, lane, K, V, frag);
      } else {
        store_state_acc<kK>(args.h, c, hv, at, K, V, state);
      }
    }
    std::uint32_t value[4][4];
    load_value_frags<kWarps>(smem_address(stage.v), warp, lane, value);

    float z[8][4] = {};
    multiply_channels<kK>(frag, smem_address(stage.kt), lane, z);
    std::uint32_t z_frag[4][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const float2 beta = *reinterpret_cast<const float2*>(&stage.beta[8 * t + c2]);
      const std::uint32_t va = value[t / 2][2 * (t % 2)];
      const std::uint32_t vb = value[t / 2][2 * (t % 2) + 1];
      z_frag[t / 2][2 * (t % 2)] =
          pack_bf16(beta.x * (low_of(va) - z[t][0]), beta.y * (high_of(va) - z[t][1]));
      z_frag[t / 2][2 * (t % 2) + 1] =
          pack_bf16(beta.x * (low_of(vb) - z[t][2]), beta.y * (high_of(vb) - z[t][3]));
    }
    float u[8][4] = {};
    multiply_lower(z_frag, smem_address(stage.a), lane, u);
    std::uint32_t u_frag[4][4];
    pack_tokens(u, u_frag);
    if constexpr (kOutput) {
      float o[8][4] = {};
      multiply_channels<kK>(frag, smem_address(stage.qt), lane, o);
      multiply_lower(u_frag, smem_address(stage.n), lane, o);
      store_token_rows(args.o, chunk.row * args.o.s0 + chunk.begin * args.o.s1 + hv * args.o.s2,
                       chunk.length, v_base, V, lane, o);
    }
    scale_state<kK>(stage.decay, c2, state);
    multiply_tokens<kK>(u_frag, smem_address(stage.kh), lane, state);
  }
  if (args.final_state.data != nullptr) {
    store_state_acc<kK>(args.final_state, seq_index, hv, at, K, V, state);
  }
}

template <int kK, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    scan_rev_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<ScanSmem<kK, kWarps>*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + 16 * kWarps - 1) / (16 * kWarps);
  const int v0 = static_cast<int>(blockIdx.x % slices) * 16 * kWarps;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t seq_index = blockIdx.x / slices / HV;
  const SequenceSpan seq = sequence_at(args.map, seq_index);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int c2 = 2 * (lane % 4);
  const int v_base = v0 + 16 * warp;
  const StateLane at{v_base + lane / 4, c2};

  float state[kK / 8][4];
  load_state_acc<kK>(args.d_final_state, seq_index, hv, at, K, V, state);
  const std::int64_t num_chunks = (seq.length + kC - 1) / kC;
  constexpr int kStages = kScanStages<kK>;
  const auto load_chunk = [&](std::int64_t local) {
    load_stage<kK, kWarps>(args, args.d_o, chunk_of(seq, local),
                           (seq.first_chunk + local) * HV + hv, hv, v0, &s.stage[local % kStages],
                           true);
  };
  if (kStages > 1 && num_chunks > 0) load_chunk(num_chunks - 1);
  for (std::int64_t local = num_chunks - 1; local >= 0; --local) {
    ScanStage<kK, kWarps>& stage = s.stage[local % kStages];
    const std::int64_t c = seq.first_chunk + local;
    const Chunk chunk = chunk_of(seq, local);
    if constexpr (kStages == 1) {
      __syncthreads();  // the last chunk has been read
      load_chunk(local);
    }
    ptx::cp_async_wait<0>();
    if (args.d_o.data != nullptr && args.d_o.elem == Elem::kF16) {
      convert_values<kWarps>(smem_address(stage.v));
    }
    __syncthreads();  // this stage is complete; the other one has been read
    if (kStages > 1 && local > 0) load_chunk(local - 1);
    const StateFragments<kK> frag(state);
    store_snapshot<kK>(args.d_states, c, hv, v_base, lane, K, V, frag);
    std::uint32_t value[4][4];
    load_value_frags<kWarps>(smem_address(stage.v), warp, lane, value);
    float du[8][4] = {};
    multiply_channels<kK>(frag, smem_address(stage.kh), lane, du);
    multiply_lower_transposed(value, smem_address(stage.n), lane, du);
    std::uint32_t du_frag[4][4];
    pack_tokens(du, du_frag);
    float x[8][4] = {};
    multiply_lower_transposed(du_frag, smem_address(stage.a), lane, x);
    store_token_rows({args.x.data, args.x.s0, args.x.s2, 0, 1, args.x.elem, V % 2 == 0},
                     c * args.x.s0 + hv * args.x.s1, kC, v_base, V, lane, x);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const float2 beta = *reinterpret_cast<const float2*>(&stage.beta[8 * t + c2]);
      x[t][0] *= beta.x;
      x[t][1] *= beta.y;
      x[t][2] *= beta.x;
      x[t][3] *= beta.y;
    }
    if (args.dv.data != nullptr) {
      store_token_rows(args.dv, chunk.row * args.dv.s0 + chunk.begin * args.dv.s1 + hv * args.dv.s2,
                       chunk.length, v_base, V, lane, x);
    }
    std::uint32_t bx_frag[4][4];  // -beta X^T
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int y = 0; y < 4; ++y)
        x[t][y] = -x[t][y];
    }
    pack_tokens(x, bx_frag);
    scale_state<kK>(stage.decay, c2, state);
    multiply_tokens<kK>(value, smem_address(stage.qt), lane, state);
    multiply_tokens<kK>(bx_frag, smem_address(stage.kt), lane, state);
  }
  if (args.d_initial_state.data != nullptr) {
    store_state_acc<kK>(args.d_initial_state, seq_index, hv, at, K, V, state);
  }
}

}  // namespace kda::cuda
