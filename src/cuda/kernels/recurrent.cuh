// The recurrence token by token: generation with a pool of states, and the exact definition for
// any gate, dtype and head size.
//
// Math, per sequence and value head, S' = diag(exp(g)) S:
//   u = beta (v - S'^T k),  o = scale (S'^T q + (q.k) u),  S = S' + k u^T
// Both products with S' share one pass over the state and one reduction.
// Grid: N * HV * ceil(V / kCols) blocks; a block owns kCols value columns. Thread (r, x) keeps rows
// r + (kK / 8) a, a = 0..7, of columns 4 x .. 4 x + 3 in registers (f32). K is padded to kK in {32,
// 64, 128, 256}; kCols = 64 shares the token's vectors between two slices of 32. K = V = 128 with
// states whose rows can move in vectors has a kernel of its own (decode.cuh).
#pragma once

#include "cuda/tile/element.cuh"
#include "cuda/tile/fast_gate.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda {

// Threads of a block: kCols / 4 per row, kK / 8 rows at a time.
template <int kK, int kCols>
inline constexpr int kRecurrentThreads = kK / 8 * (kCols / 4);

template <int kK, int kCols>
struct RecurrentSmem {
  static constexpr int kWarps = kRecurrentThreads<kK, kCols> / 32;
  float q[kK];
  float k[kK];
  float decay[kK];                           // exp(g) - 1: near 1 a decay keeps all its digits
  alignas(16) float part[kWarps][2][kCols];  // per warp: S'^T k, S'^T q
  alignas(16) float norm[2][kK / 32];        // per warp of channels: |q|^2, |k|^2
  alignas(16) float qk[kK / 32];             // q.k
  alignas(16) float u[kCols];
};

// Which slot a row starts from and where the state after its token t goes; < 0: none.
__device__ inline std::int64_t valid_slot(const RecurrentArgs& args, std::int64_t n,
                                          std::int64_t column) {
  if (args.slot_columns > 0 && column >= args.slot_columns) return -1;
  const std::int64_t slot = load_index(
      args.slots, n * args.slots.s0 + (args.slot_columns > 0 ? column * args.slots.s1 : 0));
  return slot < args.num_slots ? slot : -1;
}

// The thread's 8 rows x 4 columns of a state; rows at and past K are 0. kWide: four columns of a
// row move at once (unit stride, aligned rows, f32 or bf16, V a multiple of 4); else any strides.
template <int kK, int kCols, bool kWide>
__device__ inline void load_rows(const Tensor& from, std::int64_t index, int hv, int v, int K,
                                 int V, float (&state)[8][4]) {
  const int r = threadIdx.x / (kCols / 4);
  const std::int64_t at = index * from.s0 + hv * from.s1 + v * from.s3;
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int d = r + kK / 8 * a;
    if constexpr (kWide) {
      float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (d < K && v < V && from.elem == Elem::kF32) {
        x = __ldcs(reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + at +
                                                   d * from.s2));
      } else if (d < K && v < V) {
        const uint2 pair = __ldcs(reinterpret_cast<const uint2*>(
            static_cast<const std::uint16_t*>(from.data) + at + d * from.s2));
        x = make_float4(low_of(pair.x), high_of(pair.x), low_of(pair.y), high_of(pair.y));
      }
      state[a][0] = x.x, state[a][1] = x.y, state[a][2] = x.z, state[a][3] = x.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[a][j] = d < K && v + j < V ? load(from, at + d * from.s2 + j * from.s3) : 0.0F;
      }
    }
  }
}

template <int kK, int kCols, bool kWide>
__device__ inline void store_rows(const Tensor& to, std::int64_t index, int hv, int v, int K, int V,
                                  const float (&state)[8][4]) {
  const int r = threadIdx.x / (kCols / 4);
  const std::int64_t at = index * to.s0 + hv * to.s1 + v * to.s3;
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int d = r + kK / 8 * a;
    if (d >= K) continue;
    if constexpr (!kWide) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (v + j < V) store(to, at + d * to.s2 + j * to.s3, state[a][j]);
      }
    } else if (v < V && to.elem == Elem::kF32) {
      __stcs(reinterpret_cast<float4*>(static_cast<float*>(to.data) + at + d * to.s2),
             make_float4(state[a][0], state[a][1], state[a][2], state[a][3]));
    } else if (v < V) {
      __stcs(reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(to.data) + at + d * to.s2),
             make_uint2(pack_bf16(state[a][0], state[a][1]), pack_bf16(state[a][2], state[a][3])));
    }
  }
}

// A thread's share of a token: channel tid of q, k and the gate, column v0 + tid of v.
struct TokenShare {
  float q = 0.0F;
  float k = 0.0F;
  float g = 0.0F;
  float value = 0.0F;
  float beta = 0.0F;
};

template <int kCols>
__device__ inline TokenShare load_share(const RecurrentArgs& args, std::int64_t row, std::int64_t t,
                                        int hv, int v0) {
  const Inputs& in = args.in;
  const int tid = threadIdx.x;
  const int h = hv / args.shape.G;
  TokenShare x;
  if (tid < args.shape.K) {
    x.q = load(in.q, row * in.q.s0 + t * in.q.s1 + h * in.q.s2 + tid * in.q.s3);
    x.k = load(in.k, row * in.k.s0 + t * in.k.s1 + h * in.k.s2 + tid * in.k.s3);
    x.g = load(in.g, row * in.g.s0 + t * in.g.s1 + hv * in.g.s2 + tid * in.g.s3);
  }
  if (tid < kCols && v0 + tid < args.shape.V) {
    x.value = load(in.v, row * in.v.s0 + t * in.v.s1 + hv * in.v.s2 + (v0 + tid) * in.v.s3);
    if (args.beta_v.data != nullptr) {
      const Tensor& b = args.beta_v;
      x.beta = load(b, row * b.s0 + t * b.s1 + hv * b.s2 + (v0 + tid) * b.s3);
    } else {
      x.beta = beta_of(in, row * in.beta.s0 + t * in.beta.s1 + hv * in.beta.s2);
    }
  }
  return x;
}

template <int kK, int kCols, bool kWide>
__global__ void __launch_bounds__(kRecurrentThreads<kK, kCols>,
                                  (kWide ? 640 : 512) / kRecurrentThreads<kK, kCols>)
    recurrent_kernel(const __grid_constant__ RecurrentArgs args) {
  __shared__ RecurrentSmem<kK, kCols> s;
  constexpr int kLanes = kCols / 4;  // threads of a row
  constexpr int kWarps = RecurrentSmem<kK, kCols>::kWarps;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + kCols - 1) / kCols;
  const int v0 = static_cast<int>(blockIdx.x % slices) * kCols;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t n = blockIdx.x / slices / HV;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int r = tid / kLanes;
  const int x = tid % kLanes;
  const int v = v0 + 4 * x;
  const std::int64_t row = args.offsets == nullptr ? n : 0;
  const std::int64_t begin = args.offsets == nullptr ? 0 : args.offsets[n];
  const std::int64_t end = args.offsets == nullptr ? args.shape.T : args.offsets[n + 1];
  const bool pooled = args.pool.data != nullptr;
  if (begin == end && (pooled || args.final_state.data == nullptr)) return;

  const Tensor& source = pooled ? args.pool : args.in.initial_state;
  std::int64_t start = n;
  if (pooled) {
    std::int64_t column = 0;
    if (args.slot_columns > 0) {
      const std::int64_t accepted = args.num_accepted.data == nullptr
                                        ? 1
                                        : load_index(args.num_accepted, n * args.num_accepted.s0);
      column = accepted - 1;
    }
    start = column < 0 ? -1 : valid_slot(args, n, column);
  }
  // The first token is sent for before the state: its way through the gate and the norm is longer.
  TokenShare token;
  if (begin < end) token = load_share<kCols>(args, row, begin, hv, v0);
  const Inputs& in = args.in;
  const GateChannel gc = gate_channel(in.gate, hv, tid < K ? tid : 0, K);
  float state[8][4];
  if (source.data != nullptr && start >= 0) {
    load_rows<kK, kCols, kWide>(source, start, hv, v, K, V, state);
  } else {
#pragma unroll
    for (int a = 0; a < 8; ++a) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        state[a][j] = 0.0F;
    }
  }

  for (std::int64_t t = begin; t < end; ++t) {
    float q = token.q;
    float k = token.k;
    const float decay = tid < K ? expm1f(fast_decay(in.gate, gc.bias, gc.exp_a, token.g)) : 0.0F;
    const float value = token.value;
    const float beta = token.beta;
    if (t + 1 < end) token = load_share<kCols>(args, row, t + 1, hv, v0);
    if (in.l2norm) {
      const float qq = warp_sum(q * q);
      const float kk = warp_sum(k * k);
      if (lane == 0 && warp < kK / 32) {
        s.norm[0][warp] = qq;
        s.norm[1][warp] = kk;
      }
      __syncthreads();  // warp sums of squares before their sum
      float sum_q = 0.0F;
      float sum_k = 0.0F;
#pragma unroll
      for (int w = 0; w < kK / 32; ++w) {
        sum_q += s.norm[0][w];
        sum_k += s.norm[1][w];
      }
      q = round_to(in.q.elem, q * rsqrtf(sum_q + kNormEps));
      k = round_to(in.k.elem, k * rsqrtf(sum_k + kNormEps));
    }
    const float qk = warp_sum(q * k);
    if (lane == 0 && warp < kK / 32) s.qk[warp] = qk;
    if (tid < kK) {
      s.q[tid] = q;
      s.k[tid] = k;
      s.decay[tid] = decay;
    }
    __syncthreads();  // token vectors before the pass over the state

    float sk[4] = {};
    float sq[4] = {};
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int d = r + kK / 8 * a;
      const float dd = s.decay[d];
      const float kd = s.k[d];
      const float qd = s.q[d];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[a][j] = fmaf(state[a][j], dd, state[a][j]);
        sk[j] += state[a][j] * kd;
        sq[j] += state[a][j] * qd;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // over the rows that share a warp
#pragma unroll
      for (int step = kLanes; step < 32; step *= 2) {
        sk[j] += __shfl_xor_sync(0xffffffffU, sk[j], step);
        sq[j] += __shfl_xor_sync(0xffffffffU, sq[j], step);
      }
    }
    if (lane < kLanes) {
      *reinterpret_cast<float4*>(&s.part[warp][0][4 * x]) = make_float4(sk[0], sk[1], sk[2], sk[3]);
      *reinterpret_cast<float4*>(&s.part[warp][1][4 * x]) = make_float4(sq[0], sq[1], sq[2], sq[3]);
    }
    __syncthreads();  // warp sums before their sum
    if (tid < kCols) {
      float qk_sum = 0.0F;
      float sum_k = 0.0F;
      float sum_q = 0.0F;
#pragma unroll
      for (int w = 0; w < kK / 32; ++w)
        qk_sum += s.qk[w];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        sum_k += s.part[w][0][tid];
        sum_q += s.part[w][1][tid];
      }
      const float u = beta * (value - sum_k);
      s.u[tid] = u;
      if (v0 + tid < V) {
        store(args.o, row * args.o.s0 + t * args.o.s1 + hv * args.o.s2 + (v0 + tid) * args.o.s3,
              in.scale * (sum_q + qk_sum * u));
      }
    }
    __syncthreads();  // u before the update
    const float4 u = *reinterpret_cast<const float4*>(&s.u[4 * x]);
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const float kd = s.k[r + kK / 8 * a];
      state[a][0] += kd * u.x;
      state[a][1] += kd * u.y;
      state[a][2] += kd * u.z;
      state[a][3] += kd * u.w;
    }
    if (pooled && args.slot_columns > 0) {
      const std::int64_t slot = valid_slot(args, n, t - begin);
      if (slot >= 0) {
        store_rows<kK, kCols, kWide>(args.pool, slot, hv, v, K, V, state);
      }
    }
    if (t + 1 < end) __syncthreads();  // shared token vectors read before the next token's
  }
  if (pooled && args.slot_columns == 0) {
    if (start >= 0) {
      store_rows<kK, kCols, kWide>(args.pool, start, hv, v, K, V, state);
    }
  } else if (!pooled && args.final_state.data != nullptr) {
    store_rows<kK, kCols, kWide>(args.final_state, n, hv, v, K, V, state);
  }
}

}  // namespace kda::cuda
