// The recurrence token by token for K = V = 128 and states whose rows can be moved in vectors: the
// decode step at the speed of memory. Math as in recurrent.cuh. One token each: decode_one.cuh.
//
// A block owns a whole state at a time and walks over (sequence, value head) pairs; while it works
// on one state in registers, the next one is on its way to shared memory, so reads never pause. A
// warp owns 16 rows of the state and all 128 columns, a thread 4 columns: the row vectors q, k and
// the decay are broadcasts and a row is one contiguous piece of 512 (f32) or 256 bytes (bf16).
// A thread only reads the pieces that it copied itself, so copies need no barrier; a token needs
// two (its vectors, the warps' partial products). The order of every sum is fixed and does not
// depend on the number of sequences or on how they are packed.
// Inputs: q, k, g, v with aligned rows. Grid: two blocks of 8 warps per SM.
// kNorm: the output's gated RMS norm, in the warp that sums the output: no barrier more.
// Shared memory: 64 KiB (f32) or 32 KiB (bf16) of state, 15 KiB of tokens, 8 KiB of partial sums.
#pragma once

#include <type_traits>

#include "cuda/kernels/recurrent.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/decode.cuh"

namespace kda::cuda {

inline constexpr int kDecodeThreads = 256;
inline constexpr int kDecodeBlocks = 2;  // per SM

// What a thread reads of a token, as it lies in memory.
struct DecodeToken {
  uint4 vector[6 * 32];         // warps 0, 1: 4 channels of q, k; 2 to 5: 4 of g, for one of them
  uint4 value[kDecodeThreads];  // 4 columns of v
  uint4 gate[32];               // warp 7: 4 columns of the output's gate (f32 where unaligned)
};

// One (sequence, value head): its tokens, and where its state comes from and goes to (< 0:
// nowhere). hv < 0: no more work. 32 bits hold them all: 2^31 tokens or states of this size do not
// fit into a GPU.
struct DecodeItem {
  int n, hv, row;
  int begin, end;
  int from, to;
};

template <typename State>
struct DecodeSmem {
  alignas(16) State state[kDecodeRows][kDecodeThreads][4];  // 4 columns of row 16 warp + a
  alignas(16) float q[2][kDecodeHead];
  alignas(16) float k[2][kDecodeHead];
  alignas(16) float decay[2][kDecodeHead];    // exp(g) - 1: near 1 a decay keeps all its digits
  alignas(16) float part[8][2][kDecodeHead];  // per warp: S'^T k, S'^T q
  DecodeToken token[2];                       // this one and the next
  DecodeItem item[4];                         // ring: this one, the next, the one after
  float bias[kDecodeHead];                    // of the gate: warps 2 to 5
  float a_log[kDecodeHead];
  float qk[8];  // per warp: q.k of its rows
};

__device__ inline DecodeItem decode_item(const RecurrentArgs& args, int index) {
  DecodeItem item{};
  if (index >= static_cast<int>(args.shape.N) * args.shape.HV) {
    item.hv = -1;
    return item;
  }
  item.n = index / args.shape.HV;
  item.hv = index % args.shape.HV;
  const bool packed = args.offsets != nullptr;
  item.row = packed ? 0 : item.n;
  item.begin = packed ? static_cast<int>(args.offsets[item.n]) : 0;
  item.end = static_cast<int>(packed ? args.offsets[item.n + 1] : args.shape.T);
  if (args.pool.data == nullptr) {
    item.from = args.in.initial_state.data != nullptr ? item.n : -1;
    item.to = args.final_state.data != nullptr ? item.n : -1;
  } else if (args.slot_columns == 0) {
    item.from = item.to = static_cast<int>(valid_slot(args, item.n, 0));
  } else {
    const std::int64_t accepted =
        args.num_accepted.data == nullptr
            ? 1
            : load_index(args.num_accepted, item.n * args.num_accepted.s0);
    item.from = accepted < 1 ? -1 : static_cast<int>(valid_slot(args, item.n, accepted - 1));
    item.to = -1;  // a slot per token
  }
  if (item.begin == item.end && args.pool.data != nullptr) item.from = item.to = -1;
  return item;
}

// Four elements, as they lie in memory.
__device__ inline void fetch_bits4(const Tensor& t, std::int64_t offset, const uint4* to) {
  if (t.elem == Elem::kF32) {
    ptx::cp_async(smem_address(to), static_cast<const float*>(t.data) + offset);
  } else {
    ptx::cp_async8(smem_address(to), static_cast<const std::uint16_t*>(t.data) + offset);
  }
}

template <bool kNorm>
__device__ inline void fetch_token(const RecurrentArgs& args, const DecodeItem& item, int t,
                                   int warp, int lane, DecodeToken* to) {
  const Inputs& in = args.in;
  if (warp < 6) {
    const Tensor& x = warp == 0 ? in.q : warp == 1 ? in.k : in.g;
    const int head = warp >= 2 ? item.hv : item.hv / args.shape.G;
    const int d = warp >= 2 ? (32 * (warp - 2) + lane) / 4 * 4 : 4 * lane;
    fetch_bits4(x, item.row * x.s0 + t * x.s1 + head * x.s2 + d, &to->vector[threadIdx.x]);
  }
  fetch_bits4(in.v, item.row * in.v.s0 + t * in.v.s1 + item.hv * in.v.s2 + 4 * lane,
              &to->value[threadIdx.x]);
  if constexpr (kNorm) {
    const Tensor& gate = args.norm.gate;
    if (warp != 7 || gate.data == nullptr) return;
    const std::int64_t at = item.row * gate.s0 + t * gate.s1 + item.hv * gate.s2;
    if (gate.vector) {
      fetch_bits4(gate, at + 4 * lane, &to->gate[lane]);
    } else {
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
        reinterpret_cast<float*>(&to->gate[lane])[e] = load(gate, at + (4 * lane + e) * gate.s3);
      }
    }
  }
}

// Warps 0 and 1 put q and k, warps 2 to 5 the decays of a token into shared memory.
template <typename State>
__device__ inline void token_vectors(const RecurrentArgs& args, int warp, int lane, int buffer,
                                     DecodeSmem<State>* s) {
  const Inputs& in = args.in;
  const uint4 bits = s->token[buffer].vector[threadIdx.x];
  float x[4];
  if (warp >= 2) {
    bits_to_floats(in.g.elem, bits, x);
    const int d = 32 * (warp - 2) + lane;
    const float g = lane % 4 < 2 ? (lane % 4 == 0 ? x[0] : x[1]) : (lane % 4 == 2 ? x[2] : x[3]);
    const float exp_a = in.gate.a_log != nullptr ? expf(s->a_log[d]) : 1.0F;
    const float bias = in.gate.dt_bias != nullptr ? s->bias[d] : 0.0F;
    s->decay[buffer][d] = expm1f(fast_decay(in.gate, bias, exp_a, g));
    return;
  }
  bits_to_floats(in.q.elem, bits, x);
  if (in.l2norm) unit_vector(in.q.elem, x);
  float* to = warp == 0 ? s->q[buffer] : s->k[buffer];
  *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
}

// Sends for a state, its first token and the gate's parameters. A state that does not exist is
// zero.
template <bool kNorm, typename State>
__device__ inline void fetch_item(const RecurrentArgs& args, const DecodeItem& item, int warp,
                                  int lane, int place, DecodeSmem<State>* s) {
  if (item.hv < 0) return;
  if (item.begin < item.end)
    fetch_token<kNorm>(args, item, item.begin, warp, lane, &s->token[place]);
  const Gate& gate = args.in.gate;
  if (warp >= 2 && warp < 6) {
    const int d = 32 * (warp - 2) + lane;
    if (gate.dt_bias != nullptr) {
      ptx::cp_async4(smem_address(&s->bias[d]), gate.dt_bias + item.hv * kDecodeHead + d);
    }
    if (gate.a_log != nullptr) {
      ptx::cp_async4(smem_address(&s->a_log[d]), gate.a_log + item.hv);
    }
  }
  if (item.from < 0) {
    using Piece = std::conditional_t<sizeof(State) == 4, uint4, uint2>;
#pragma unroll 1
    for (int a = 0; a < kDecodeRows; ++a)
      *reinterpret_cast<Piece*>(s->state[a][threadIdx.x]) = Piece{};
    return;
  }
  const Tensor& source = state_source(args);
  constexpr int kStep = kDecodeThreads * 4 * sizeof(State);
  std::uint32_t to = smem_address(s->state[0][threadIdx.x]);
  const auto* at = static_cast<const State*>(source.data) + item.from * source.s0 +
                   item.hv * source.s1 + kDecodeRows * warp * source.s2 + 4 * lane;
#pragma unroll 1
  for (int a = 0; a < kDecodeRows; ++a) {
    if constexpr (sizeof(State) == 4) {
      ptx::cp_async(to, at);
    } else {
      ptx::cp_async8(to, at);
    }
    at += source.s2;
    to += kStep;
  }
}

template <typename State>
__device__ inline void take_state(const DecodeSmem<State>& s, float (&state)[kDecodeRows][4]) {
#pragma unroll
  for (int a = 0; a < kDecodeRows; ++a) {
    if constexpr (sizeof(State) == 4) {
      const float4 x = *reinterpret_cast<const float4*>(s.state[a][threadIdx.x]);
      state[a][0] = x.x, state[a][1] = x.y, state[a][2] = x.z, state[a][3] = x.w;
    } else {
      const uint2 x = *reinterpret_cast<const uint2*>(s.state[a][threadIdx.x]);
      state[a][0] = low_of(x.x), state[a][1] = high_of(x.x);
      state[a][2] = low_of(x.y), state[a][3] = high_of(x.y);
    }
  }
}

template <typename State>
__device__ inline void store_state(const Tensor& to, std::int64_t index, int hv, int warp, int lane,
                                   const float (&state)[kDecodeRows][4]) {
  store_rows4<State>(static_cast<State*>(to.data) + index * to.s0 + hv * to.s1 +
                         kDecodeRows * warp * to.s2 + 4 * lane,
                     to.s2, state);
}

// The state of a sequence without tokens goes on as it came.
template <typename State>
__device__ inline void pass_state(const Tensor& to, const DecodeItem& item, int warp, int lane,
                                  const DecodeSmem<State>& s) {
  auto* at = static_cast<State*>(to.data) + item.to * to.s0 + item.hv * to.s1 +
             kDecodeRows * warp * to.s2 + 4 * lane;
#pragma unroll 1
  for (int a = 0; a < kDecodeRows; ++a) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      at[a * to.s2 + e] = s.state[a][threadIdx.x][e];
  }
}

// S' and both of its products; then u, the output and S. `state` is S before and after.
template <bool kNorm, typename State>
__device__ inline void decode_step(const RecurrentArgs& args, const DecodeItem& item, int t,
                                   float beta, int warp, int lane, int buffer, DecodeSmem<State>* s,
                                   float (&state)[kDecodeRows][4]) {
  float sk[4] = {};
  float sq[4] = {};
  float qk = 0.0F;
  const int d0 = kDecodeRows * warp;
  decay_and_multiply(&s->q[buffer][d0], &s->k[buffer][d0], &s->decay[buffer][d0], state, sk, sq,
                     qk);
  *reinterpret_cast<float4*>(&s->part[warp][0][4 * lane]) = make_float4(sk[0], sk[1], sk[2], sk[3]);
  *reinterpret_cast<float4*>(&s->part[warp][1][4 * lane]) = make_float4(sq[0], sq[1], sq[2], sq[3]);
  if (lane == 0) s->qk[warp] = qk;
  __syncthreads();  // partial sums of all warps before their sum
  float u[4] = {};
#pragma unroll 2
  for (int w = 0; w < 8; ++w)
    add_to(u, *reinterpret_cast<const float4*>(&s->part[w][0][4 * lane]));
  float v[4];
  bits_to_floats(args.in.v.elem, s->token[buffer].value[threadIdx.x], v);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    u[e] = beta * (v[e] - u[e]);
  if (warp == 7) {  // warps 0 to 5 make the next token's vectors
    float o[4] = {};
    float dot = 0.0F;
#pragma unroll 2
    for (int w = 0; w < 8; ++w) {
      add_to(o, *reinterpret_cast<const float4*>(&s->part[w][1][4 * lane]));
      dot += s->qk[w];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      o[e] = args.in.scale * fmaf(dot, u[e], o[e]);
    if constexpr (kNorm) normalise_output(args.norm, s->token[buffer].gate[lane], lane, o);
    const Tensor& to = args.o;
    store_output(to, item.row * to.s0 + t * to.s1 + item.hv * to.s2 + 4 * lane * to.s3, o);
  }
  add_outer(&s->k[buffer][d0], u, state);
}

template <typename State, bool kNorm>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocks)
    decode_kernel(const __grid_constant__ RecurrentArgs args) {
  extern __shared__ __align__(16) char raw_smem[];
  auto& s = *reinterpret_cast<DecodeSmem<State>*>(raw_smem);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Tensor& target = args.pool.data != nullptr ? args.pool : args.final_state;
  const Inputs& in = args.in;
  const auto index_of = [](int round) {
    return static_cast<int>(blockIdx.x) + round * static_cast<int>(gridDim.x);
  };
  if (threadIdx.x < 2) {
    s.item[threadIdx.x] = decode_item(args, index_of(static_cast<int>(threadIdx.x)));
  }
  __syncthreads();  // the first two items before their readers
  fetch_item<kNorm>(args, s.item[0], warp, lane, 0, &s);
  ptx::cp_async_commit();
  int buffer = 0;
  for (int round = 0; s.item[round % 4].hv >= 0; ++round) {
    const DecodeItem& item = s.item[round % 4];
    const DecodeItem& next = s.item[(round + 1) % 4];
    // Read after the barrier below, in the next round.
    if (threadIdx.x == 6 * 32) s.item[(round + 2) % 4] = decode_item(args, index_of(round + 2));
    float state[kDecodeRows][4];
    for (int t = item.begin; t < item.end; ++t) {
      const float beta = beta_of(in, item.row * in.beta.s0 + t * in.beta.s1 + item.hv * in.beta.s2);
      ptx::cp_async_wait<0>();
      if (warp < 6) token_vectors(args, warp, lane, buffer, &s);
      if (t == item.begin) take_state(s, state);
      // The state has left its place, and the gate's parameters theirs.
      if (t + 1 < item.end) {
        fetch_token<kNorm>(args, item, t + 1, warp, lane, &s.token[buffer ^ 1]);
        ptx::cp_async_commit();
      } else {
        fetch_item<kNorm>(args, next, warp, lane, buffer ^ 1, &s);
        ptx::cp_async_commit();
      }
      __syncthreads();  // token vectors before their readers; partial sums of the last token read
      decode_step<kNorm>(args, item, t, beta, warp, lane, buffer, &s, state);
      buffer ^= 1;
      if (args.slot_columns > 0) {
        const std::int64_t slot = valid_slot(args, item.n, t - item.begin);
        if (slot >= 0) store_state<State>(args.pool, slot, item.hv, warp, lane, state);
      }
      if (t + 1 == item.end && item.to >= 0) {
        store_state<State>(target, item.to, item.hv, warp, lane, state);
      }
    }
    if (item.begin == item.end) {
      ptx::cp_async_wait<0>();
      if (item.to >= 0) pass_state(target, item, warp, lane, s);
      fetch_item<kNorm>(args, next, warp, lane, buffer, &s);
      ptx::cp_async_commit();
      __syncthreads();  // the item after the next before its readers
    }
  }
}

}  // namespace kda::cuda
