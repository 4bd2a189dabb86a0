// decode.cuh for one token of every sequence of a dense call, without its ring: a block has one
// state, or, where no norm needs the whole row of the output, half of its columns. The same bits.
//
// What counts here is latency. Everything is sent for before the first use: the slot, the token,
// the gate's parameters, then, as soon as the slot is known, the block's whole state into
// registers; norms, gate and beta are computed while it comes. Nothing is under way while a block
// starts, but several are on a multiprocessor (128 registers per thread), so for many sequences,
// too, it can be the faster of the two: tiling/decode.h.
// A thread has 16 rows of 4 columns, as in decode.cuh, and sums them in the same order.
// Inputs: as in decode.cuh, T = 1, no offsets. Grid: (HV x slices, N), 8 warps per whole state.
// Shared memory: 9.5 KiB for a whole state, 5.5 KiB for half of one.
#pragma once

#include <type_traits>

#include "cuda/kernels/decode.cuh"

namespace kda::cuda {

template <bool kNorm>
inline constexpr int kOneSlices = kNorm ? 1 : 2;
template <bool kNorm>
inline constexpr int kOneThreads = kDecodeThreads / kOneSlices<kNorm>;

template <bool kNorm>
struct OneSmem {
  static constexpr int kCols = kDecodeHead / kOneSlices<kNorm>;
  alignas(16) float q[kDecodeHead];
  alignas(16) float k[kDecodeHead];
  alignas(16) float decay[kDecodeHead];  // exp(g) - 1
  alignas(16) float part[8][2][kCols];   // per 16 rows: S'^T k, S'^T q
  float qk[8];                           // per 16 rows: q.k
};

// kCount elements as they lie in memory: no use of them that would wait.
template <int kCount>
__device__ inline uint4 load_bits(const Tensor& t, std::int64_t at) {
  uint4 bits = make_uint4(0, 0, 0, 0);
  if (t.elem == Elem::kF32) {
    const auto* from = static_cast<const float*>(t.data) + at;
    if constexpr (kCount == 4) {
      bits = *reinterpret_cast<const uint4*>(from);
    } else {
      bits.x = *reinterpret_cast<const std::uint32_t*>(from);
    }
  } else {
    const auto* from = static_cast<const std::uint16_t*>(t.data) + at;
    if constexpr (kCount == 4) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      bits.x = x.x, bits.y = x.y;
    } else {
      bits.x = *from;
    }
  }
  return bits;
}

__device__ inline float bits_to_float(Elem elem, std::uint32_t bits) {
  float x[4];
  bits_to_floats(elem, make_uint4(bits, 0, 0, 0), x);
  return x[0];
}

// A slot as its words, to be looked at when other loads are on their way.
struct SlotBits {
  int low = -1;
  int high = -1;
};

__device__ inline SlotBits load_slot(const RecurrentArgs& args, int n, std::int64_t column) {
  const Tensor& t = args.slots;
  const bool wide = t.elem == Elem::kI64;
  const auto* from = static_cast<const int*>(t.data) + (n * t.s0 + column * t.s1) * (wide ? 2 : 1);
  return {from[0], from[wide ? 1 : 0]};
}

// < 0: none. What is not below num_slots, or takes more than 31 bits, is none either.
__device__ inline int slot_of(const RecurrentArgs& args, const SlotBits& bits) {
  const bool fits = args.slots.elem != Elem::kI64 || bits.high == 0;
  return fits && bits.low >= 0 && bits.low < args.num_slots ? bits.low : -1;
}

// Where the state of a sequence comes from and goes to; the slots may still be on their way.
struct OneSlots {
  SlotBits from;
  SlotBits to;
};

__device__ inline OneSlots load_slots(const RecurrentArgs& args, int n) {
  OneSlots slots;
  if (args.pool.data == nullptr) return slots;
  if (args.slot_columns == 0) {
    slots.from = slots.to = load_slot(args, n, 0);
    return slots;
  }
  slots.to = load_slot(args, n, 0);
  std::int64_t accepted = 1;
  if (args.num_accepted.data != nullptr) {
    accepted = load_index(args.num_accepted, n * args.num_accepted.s0);
  }
  if (accepted >= 1 && accepted <= args.slot_columns) {
    slots.from = load_slot(args, n, accepted - 1);
  }
  return slots;
}

template <typename State>
using OnePiece = std::conditional_t<sizeof(State) == 4, uint4, uint2>;

template <typename State>
__device__ inline void unpack_piece(const OnePiece<State>& bits, float (&x)[4]) {
  if constexpr (sizeof(State) == 4) {
    x[0] = __uint_as_float(bits.x), x[1] = __uint_as_float(bits.y);
    x[2] = __uint_as_float(bits.z), x[3] = __uint_as_float(bits.w);
  } else {
    x[0] = low_of(bits.x), x[1] = high_of(bits.x);
    x[2] = low_of(bits.y), x[3] = high_of(bits.y);
  }
}

template <typename State, bool kNorm>
__global__ void __launch_bounds__(kOneThreads<kNorm>, 512 / kOneThreads<kNorm>)
    decode_one_kernel(const __grid_constant__ RecurrentArgs args) {
  using Smem = OneSmem<kNorm>;
  constexpr int kSlices = kOneSlices<kNorm>;
  constexpr int kLanes = kOneThreads<kNorm> / 8;  // of a row
  // Warps 0 and 1 have q and k, the next ones the gate, 128 channels in all.
  constexpr int kGateWarps = kOneThreads<kNorm> >= 192 ? 4 : 2;
  constexpr int kGates = 4 / kGateWarps;  // per lane
  __shared__ Smem s;
  const Inputs& in = args.in;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int hv = static_cast<int>(blockIdx.x) / kSlices;
  const int n = static_cast<int>(blockIdx.y);
  const int own = tid % kLanes * 4;  // the thread's first column in the block
  const int column = static_cast<int>(blockIdx.x) % kSlices * Smem::kCols + own;
  const int rows = tid / kLanes;  // which 16 rows
  const int d0 = kDecodeRows * rows;

  // Loads. First the slots: the state waits for them.
  const OneSlots slots = load_slots(args, n);
  uint4 vector = make_uint4(0, 0, 0, 0);
  if (warp < 2) {
    const int h = args.shape.G == 1 ? hv : hv / args.shape.G;
    const Tensor& x = warp == 0 ? in.q : in.k;
    vector = load_bits<4>(x, n * x.s0 + h * x.s2 + 4 * lane);
  }
  const bool gates = warp >= 2 && warp < 2 + kGateWarps;
  const int channel = 32 * (warp - 2) + lane;  // and channel + 32 kGateWarps
  std::uint32_t g_bits[kGates] = {};
  float bias[kGates] = {};
  float a_log = 0.0F;
  if (gates) {
#pragma unroll
    for (int e = 0; e < kGates; ++e) {
      const int d = channel + 32 * kGateWarps * e;
      g_bits[e] = load_bits<1>(in.g, n * in.g.s0 + hv * in.g.s2 + d).x;
      if (in.gate.dt_bias != nullptr) bias[e] = __ldg(in.gate.dt_bias + hv * kDecodeHead + d);
    }
    if (in.gate.a_log != nullptr) a_log = __ldg(in.gate.a_log + hv);
  }
  const uint4 value_bits = load_bits<4>(in.v, n * in.v.s0 + hv * in.v.s2 + column);
  const std::uint32_t beta_bits = load_bits<1>(in.beta, n * in.beta.s0 + hv * in.beta.s2).x;
  const bool sums_output = rows == 7;
  uint4 gate_bits = make_uint4(0, 0, 0, 0);
  if constexpr (kNorm) {
    const Tensor& gate = args.norm.gate;
    const std::int64_t at = n * gate.s0 + hv * gate.s2;
    if (sums_output && gate.data != nullptr) {
      if (gate.vector) {
        gate_bits = load_bits<4>(gate, at + column);
      } else {  // normalise_output takes f32 then
        gate_bits.x = __float_as_uint(load(gate, at + column * gate.s3));
        gate_bits.y = __float_as_uint(load(gate, at + (column + 1) * gate.s3));
        gate_bits.z = __float_as_uint(load(gate, at + (column + 2) * gate.s3));
        gate_bits.w = __float_as_uint(load(gate, at + (column + 3) * gate.s3));
      }
    }
  }
  const bool pooled = args.pool.data != nullptr;
  const Tensor& source = state_source(args);
  const int from = pooled ? slot_of(args, slots.from) : in.initial_state.data != nullptr ? n : -1;
  OnePiece<State> piece[kDecodeRows] = {};  // a state that does not exist is zero
  if (from >= 0) {
    const auto* at = static_cast<const State*>(source.data) + from * source.s0 + hv * source.s1 +
                     d0 * source.s2 + column;
#pragma unroll
    for (int a = 0; a < kDecodeRows; ++a)
      piece[a] = __ldcs(reinterpret_cast<const OnePiece<State>*>(at + a * source.s2));
  }

  // The token, while the state is on its way.
  if (warp < 2) {
    float x[4];
    bits_to_floats(in.q.elem, vector, x);
    if (in.l2norm) unit_vector(in.q.elem, x);
    *reinterpret_cast<float4*>((warp == 0 ? s.q : s.k) + 4 * lane) =
        make_float4(x[0], x[1], x[2], x[3]);
  }
  if (gates) {
    const float exp_a = in.gate.a_log != nullptr ? expf(a_log) : 1.0F;
#pragma unroll
    for (int e = 0; e < kGates; ++e) {
      const float g = bits_to_float(in.g.elem, g_bits[e]);
      s.decay[channel + 32 * kGateWarps * e] = expm1f(fast_decay(in.gate, bias[e], exp_a, g));
    }
  }
  float v[4];
  bits_to_floats(in.v.elem, value_bits, v);
  float beta = bits_to_float(in.beta.elem, beta_bits);
  if (in.beta_is_logit) beta = in.beta_max * sigmoid(beta);
  __syncthreads();  // token vectors before their readers

  float state[kDecodeRows][4];
  float sk[4] = {};
  float sq[4] = {};
  float qk = 0.0F;
#pragma unroll
  for (int a = 0; a < kDecodeRows; ++a)
    unpack_piece<State>(piece[a], state[a]);
  decay_and_multiply(&s.q[d0], &s.k[d0], &s.decay[d0], state, sk, sq, qk);
  *reinterpret_cast<float4*>(&s.part[rows][0][own]) = make_float4(sk[0], sk[1], sk[2], sk[3]);
  *reinterpret_cast<float4*>(&s.part[rows][1][own]) = make_float4(sq[0], sq[1], sq[2], sq[3]);
  if (own == 0) s.qk[rows] = qk;
  __syncthreads();  // partial sums of all rows before their sum
  float u[4] = {};
#pragma unroll
  for (int w = 0; w < 8; ++w)
    add_to(u, *reinterpret_cast<const float4*>(&s.part[w][0][own]));
#pragma unroll
  for (int e = 0; e < 4; ++e)
    u[e] = beta * (v[e] - u[e]);
  if (sums_output) {
    float o[4] = {};
    float dot = 0.0F;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      add_to(o, *reinterpret_cast<const float4*>(&s.part[w][1][own]));
      dot += s.qk[w];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      o[e] = in.scale * fmaf(dot, u[e], o[e]);
    if constexpr (kNorm) normalise_output(args.norm, gate_bits, lane, o);
    store_output(args.o, n * args.o.s0 + hv * args.o.s2 + column * args.o.s3, o);
  }
  const int to = pooled ? slot_of(args, slots.to) : args.final_state.data != nullptr ? n : -1;
  if (to < 0) return;
  add_outer(&s.k[d0], u, state);
  const Tensor& target = pooled ? args.pool : args.final_state;
  store_rows4<State>(
      static_cast<State*>(target.data) + to * target.s0 + hv * target.s1 + d0 * target.s2 + column,
      target.s2, state);
}

}  // namespace kda::cuda
