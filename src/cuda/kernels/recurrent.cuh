// The recurrence token by token: generation with a pool of states, and the exact definition for
// any gate, dtype and head size.
//
// Math, per sequence and value head, S' = diag(exp(g)) S:
//   u = beta (v - S'^T k),  o = scale (S'^T q + (q.k) u),  S = S' + k u^T
// Both products with S' share one pass over the state and one reduction.
// Grid: N * HV * ceil(V / kCols) blocks; a block owns kCols value columns. Thread (r, x) keeps rows
// r + (kK / 8) a, a = 0..7, of columns 4 x .. 4 x + 3 in registers (f32). K is padded to kK in {32,
// 64, 128, 256}; kCols = 64 shares the token's vectors between two slices of 32.
#pragma once

#include "cuda/tile/element.cuh"
#include "cuda/tile/fast_gate.cuh"

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

// Any strides and V; out of line.
struct StateRows {
  float x[8][4];
};
static __device__ __noinline__ StateRows load_rows_slow(const Tensor& from, std::int64_t at, int d0,
                                                        int step, int K, int columns) {
  StateRows out;
#pragma unroll 1
  for (int a = 0; a < 8; ++a) {
    const int d = d0 + step * a;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
      out.x[a][j] = d < K && j < columns ? load(from, at + d * from.s2 + j * from.s3) : 0.0F;
    }
  }
  return out;
}
static __device__ __noinline__ void store_rows_slow(const Tensor& to, std::int64_t at, int d0,
                                                    int step, int K, int columns,
                                                    const StateRows& rows) {
#pragma unroll 1
  for (int a = 0; a < 8; ++a) {
    const int d = d0 + step * a;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
      if (d < K && j < columns) store(to, at + d * to.s2 + j * to.s3, rows.x[a][j]);
    }
  }
}

// The thread's 8 rows x 4 columns of a state; rows at and past K are 0.
template <int kK, int kCols>
__device__ inline void load_rows(const Tensor& from, std::int64_t index, int hv, int v, int K,
                                 int V, bool wide, float (&state)[8][4]) {
  const int r = threadIdx.x / (kCols / 4);
  const std::int64_t at = index * from.s0 + hv * from.s1 + v * from.s3;
  if (wide && from.elem == Elem::kF32) {
    const auto* base = static_cast<const float*>(from.data) + at + r * from.s2;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (r + kK / 8 * a < K)
        x = __ldcs(reinterpret_cast<const float4*>(base + kK / 8 * a * from.s2));
      state[a][0] = x.x, state[a][1] = x.y, state[a][2] = x.z, state[a][3] = x.w;
    }
  } else if (wide) {
    const auto* base = static_cast<const std::uint16_t*>(from.data) + at + r * from.s2;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      uint2 x = make_uint2(0, 0);
      if (r + kK / 8 * a < K)
        x = __ldcs(reinterpret_cast<const uint2*>(base + kK / 8 * a * from.s2));
      state[a][0] = __uint_as_float(x.x << 16);
      state[a][1] = __uint_as_float(x.x & 0xffff0000U);
      state[a][2] = __uint_as_float(x.y << 16);
      state[a][3] = __uint_as_float(x.y & 0xffff0000U);
    }
  } else {
    const StateRows rows = load_rows_slow(from, at, r, kK / 8, K, V - v);
#pragma unroll
    for (int a = 0; a < 8; ++a) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        state[a][j] = rows.x[a][j];
    }
  }
}

template <int kK, int kCols>
__device__ inline void store_rows(const Tensor& to, std::int64_t index, int hv, int v, int K, int V,
                                  bool wide, const float (&state)[8][4]) {
  const int r = threadIdx.x / (kCols / 4);
  const std::int64_t at = index * to.s0 + hv * to.s1 + v * to.s3;
  if (wide && to.elem == Elem::kF32) {
    auto* base = static_cast<float*>(to.data) + at + r * to.s2;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      if (r + kK / 8 * a < K) {
        __stcs(reinterpret_cast<float4*>(base + kK / 8 * a * to.s2),
               make_float4(state[a][0], state[a][1], state[a][2], state[a][3]));
      }
    }
  } else if (wide) {
    auto* base = static_cast<std::uint16_t*>(to.data) + at + r * to.s2;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const __nv_bfloat162 x[2] = {__floats2bfloat162_rn(state[a][0], state[a][1]),
                                   __floats2bfloat162_rn(state[a][2], state[a][3])};
      if (r + kK / 8 * a < K) {
        __stcs(reinterpret_cast<uint2*>(base + kK / 8 * a * to.s2),
               *reinterpret_cast<const uint2*>(x));
      }
    }
  } else {
    StateRows rows;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        rows.x[a][j] = state[a][j];
    }
    store_rows_slow(to, at, r, kK / 8, K, V - v, rows);
  }
}

// Four columns of a row may move at once: unit stride, aligned rows, whole group inside V.
__device__ inline bool wide_rows(const Tensor& t, int v, int V) {
  if (!t.vector || v + 4 > V) return false;
  return t.elem == Elem::kF32 || t.elem == Elem::kBF16;
}

template <int kK, int kCols>
__global__ void __launch_bounds__(kRecurrentThreads<kK, kCols>, 1024 / kRecurrentThreads<kK, kCols>)
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
  float state[8][4];
  if (source.data != nullptr && start >= 0) {
    load_rows<kK, kCols>(source, start, hv, v, K, V, wide_rows(source, v, V), state);
  } else {
#pragma unroll
    for (int a = 0; a < 8; ++a) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        state[a][j] = 0.0F;
    }
  }

  const Inputs& in = args.in;
  const int h = hv / args.shape.G;
  const GateChannel gc = gate_channel(in.gate, hv, tid < K ? tid : 0, K);
  for (std::int64_t t = begin; t < end; ++t) {
    float q = 0.0F;
    float k = 0.0F;
    float decay = 0.0F;
    if (tid < K) {
      q = load(in.q, row * in.q.s0 + t * in.q.s1 + h * in.q.s2 + tid * in.q.s3);
      k = load(in.k, row * in.k.s0 + t * in.k.s1 + h * in.k.s2 + tid * in.k.s3);
      const float g = load(in.g, row * in.g.s0 + t * in.g.s1 + hv * in.g.s2 + tid * in.g.s3);
      decay = expm1f(fast_decay(in.gate, gc.bias, gc.exp_a, g));
    }
    float value = 0.0F;  // of column v0 + tid, in the first warp
    float beta = 0.0F;
    if (tid < kCols && v0 + tid < V) {
      value = load(in.v, row * in.v.s0 + t * in.v.s1 + hv * in.v.s2 + (v0 + tid) * in.v.s3);
      if (args.beta_v.data != nullptr) {
        const Tensor& b = args.beta_v;
        beta = load(b, row * b.s0 + t * b.s1 + hv * b.s2 + (v0 + tid) * b.s3);
      } else {
        beta = beta_of(in, row * in.beta.s0 + t * in.beta.s1 + hv * in.beta.s2);
      }
    }
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
        store_rows<kK, kCols>(args.pool, slot, hv, v, K, V, wide_rows(args.pool, v, V), state);
      }
    }
    if (t + 1 < end) __syncthreads();  // shared token vectors read before the next token's
  }
  if (pooled && args.slot_columns == 0) {
    if (start >= 0) {
      store_rows<kK, kCols>(args.pool, start, hv, v, K, V, wide_rows(args.pool, v, V), state);
    }
  } else if (!pooled && args.final_state.data != nullptr) {
    store_rows<kK, kCols>(args.final_state, n, hv, v, K, V, wide_rows(args.final_state, v, V),
                          state);
  }
}

}  // namespace kda::cuda
