// Chunk-local part of the backward with tensor cores for heads of more than 128 channels or
// columns: the math and the steps of local_mma.cuh in two kernels, since S and D do not fit into
// shared memory.
//
//   local_pairs: steps 1 and 2. For every 128 columns of V: Z = beta (v - kt S), 128 channels of S
//   at
//     a time, U = A Z, and the shares of dN and P. U, dN and P go to memory.
//   local_wide:  steps 3 to 6 for 128 channels of K: products with S and D, 128 columns at a time,
//     then local_sweeps.
// Inputs: as local_mma.cuh. Outputs: dg; dq, dk, and the shares of dbeta as partial sums
// (finish.cuh). Grid: num_chunks * HV, and that times ceil(K / 128), of 16 warps. Shared memory:
// 120 and 147 KiB.
#pragma once

#include "cuda/kernels/local_sweeps.cuh"

namespace kda::cuda {

inline constexpr int kWideSlice = 128;  // channels, columns
inline constexpr int kWideThreads = kLocalThreads<kWideSlice>;

struct PairsSmem {
  alignas(256) std::uint16_t s[kWideSlice * kWideSlice];
  alignas(256) std::uint16_t kt[kC * kWideSlice];
  alignas(256) std::uint16_t v[kC * kWideSlice];  // then Z
  alignas(256) std::uint16_t u[kC * kWideSlice];
  alignas(256) std::uint16_t x[kC * kWideSlice];
  alignas(256) std::uint16_t d_o[kC * kWideSlice];
  alignas(256) std::uint16_t a[kC * kC];
  float beta[kC];
};

// [kRows, 128] elements from `at` on; rows and columns past the limits become 0.
template <int kRows, bool kPlain>
__device__ inline void copy_slice(const Tensor& t, std::int64_t at, std::int64_t stride, int rows,
                                  int cols, const std::uint16_t* to) {
  if constexpr (kPlain) {
    copy_rows<kRows, kWideSlice, kWideThreads>(static_cast<const std::uint16_t*>(t.data) + at,
                                               stride, rows, smem_address(to));
  } else {
    copy_matrix<kRows, kWideSlice, kWideThreads, false>(t, at, stride, rows, cols,
                                                        smem_address(to));
  }
}

template <bool kPlain>
__global__ void __launch_bounds__(kWideThreads, 1)
    local_pairs_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<PairsSmem*>(raw_smem);
  constexpr int kTiles = kWideSlice / 32;  // n-tiles per warp
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t chunk_index = blockIdx.x / static_cast<unsigned>(HV);
  const int hv = static_cast<int>(blockIdx.x % static_cast<unsigned>(HV));
  const Chunk chunk = chunk_at(args.map, chunk_index);
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int rb = tid / 128;
  const int cq = tid / 32 % 4;
  const int c = lane % 4;
  const int row0 = 16 * rb;
  const int i0 = row0 + lane / 4;
  const int col = 8 * kTiles * cq;  // the warp's first column of a slice
  const std::uint32_t first_pair = pair_address<kWideSlice>(0, i0, col + 2 * c);
  const auto pair_at = [&](int row, int t) {
    return (first_pair ^ static_cast<std::uint32_t>(16 * t)) +
           static_cast<std::uint32_t>(16 * kWideSlice * row);
  };
  const Inputs& in = args.in;
  const Tensor& d_o = args.d_o;
  const int ld = args.factor_columns > 0 ? args.factor_columns : K;
  Tensor kt;
  kt.data = args.factors.kt;
  kt.s3 = 1;
  kt.elem = Elem::kBF16;
  kt.vector = true;

  copy_tile<kC, kWideThreads>(static_cast<const std::uint16_t*>(args.factors.a) + tile * kC * kC,
                              smem_address(s.a));
  if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
  float d_n[2][4] = {};
  float p[2][4] = {};
#pragma unroll 1
  for (int v0 = 0; v0 < V; v0 += kWideSlice) {
    const int cols = V - v0 < kWideSlice ? V - v0 : kWideSlice;
    __syncthreads();  // the last slice has been read
    copy_slice<kC, kPlain>(in.v, chunk.row * in.v.s0 + chunk.begin * in.v.s1 + hv * in.v.s2 + v0,
                           in.v.s1, chunk.length, cols, s.v);
    copy_slice<kC, kPlain>(args.x, chunk_index * args.x.s0 + hv * args.x.s1 + v0, args.x.s2, kC,
                           cols, s.x);
    copy_slice<kC, kPlain>(d_o, chunk.row * d_o.s0 + chunk.begin * d_o.s1 + hv * d_o.s2 + v0,
                           d_o.s1, d_o.data == nullptr ? 0 : chunk.length, cols, s.d_o);
    float z[kTiles][4];
    clear(z);
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += kWideSlice) {
      const int rows = K - k0 < kWideSlice ? K - k0 : kWideSlice;
      if (k0 > 0) __syncthreads();  // the last channels have been read
      if (ld % kWideSlice == 0) {
        copy_slice<kC, true>(kt, tile * kC * ld + k0, ld, kC, kWideSlice, s.kt);
      } else {
        copy_slice<kC, false>(kt, tile * kC * ld + k0, ld, kC, ld - k0, s.kt);
      }
      copy_slice<kWideSlice, kPlain>(args.h,
                                     chunk_index * args.h.s0 + hv * args.h.s1 + k0 * args.h.s2 + v0,
                                     args.h.s2, rows, cols, s.s);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();  // operands before their readers
      multiply_rows<kWideSlice, kWideSlice, kTiles>(smem_address(s.kt), row0, smem_address(s.s),
                                                    col, lane, z);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float beta = s.beta[i0 + 8 * row];
        const std::uint32_t at = smem_address(s.v) + pair_at(row, t);
        const std::uint32_t v = ptx::load_shared_pair(at);
        ptx::store_shared_pair(at, pack_bf16(beta * (low_of(v) - z[t][2 * row]),
                                             beta * (high_of(v) - z[t][2 * row + 1])));
      }
    }
    __syncthreads();  // Z before its readers
    clear(z);
#pragma unroll 1
    for (int J = 0; J <= rb; ++J) {
      std::uint32_t a[4];
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.a), row0, 16 * J, lane));
      multiply_block<kWideSlice, kTiles>(a, smem_address(s.v), 16 * J, col, lane, z);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t u = pack_bf16(z[t][2 * row], z[t][2 * row + 1]);
        ptx::store_shared_pair(smem_address(s.u) + pair_at(row, t), u);
        const int v = v0 + col + 8 * t + 2 * c;
        std::uint16_t* to = args.u_half + (tile * kC + i0 + 8 * row) * V + v;
        if (v < V) to[0] = static_cast<std::uint16_t>(u & 0xffffU);
        if (v + 1 < V) to[1] = static_cast<std::uint16_t>(u >> 16);
      }
    }
    __syncthreads();  // U before step 2
    if (cq <= rb) {
#pragma unroll
      for (int k = 0; k < kWideSlice / 16; ++k) {
        std::uint32_t a[4];
        std::uint32_t x[4];
        std::uint32_t b[4];
        ptx::ldmatrix(a, block_address<kWideSlice>(smem_address(s.d_o), row0, 16 * k, lane));
        ptx::ldmatrix(x, block_address<kWideSlice>(smem_address(s.x), row0, 16 * k, lane));
        ptx::ldmatrix(b, block_address<kWideSlice>(smem_address(s.u), 16 * cq, 16 * k, lane));
        ptx::mma_bf16(d_n[0], a, b[0], b[2]);
        ptx::mma_bf16(d_n[1], a, b[1], b[3]);
        ptx::mma_bf16(p[0], x, b[0], b[2]);
        ptx::mma_bf16(p[1], x, b[1], b[3]);
      }
    }
  }
  if (cq > rb) return;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int i = i0 + 8 * row;
      const int j = 16 * cq + 8 * t + 2 * c;
      const float n0 = i >= j ? in.scale * d_n[t][2 * row] : 0.0F;
      const float n1 = i >= j + 1 ? in.scale * d_n[t][2 * row + 1] : 0.0F;
      const float p0 = i > j ? -p[t][2 * row] : 0.0F;
      const float p1 = i > j + 1 ? -p[t][2 * row + 1] : 0.0F;
      auto* to = reinterpret_cast<std::uint32_t*>(args.pairs) + tile * kC * kC + (i * kC + j) / 2;
      to[0] = pack_bf16(n0, n1);
      to[kC * kC / 2] = pack_bf16(p0, p1);
    }
  }
}

template <bool kPlain>
__global__ void __launch_bounds__(kWideThreads, 1)
    local_wide_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  constexpr int kD = kWideSlice;
  auto& s = *reinterpret_cast<LocalSmem<kD, kD>*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (K + kD - 1) / kD;
  const int slice = static_cast<int>(blockIdx.x % slices);
  const std::int64_t tile = blockIdx.x / slices;
  const std::int64_t chunk_index = static_cast<unsigned>(tile) / static_cast<unsigned>(HV);
  const int hv = static_cast<int>(static_cast<unsigned>(tile) % static_cast<unsigned>(HV));
  const Chunk chunk = chunk_at(args.map, chunk_index);
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int row0 = 16 * (tid / 128);
  const int col = 32 * (tid / 32 % 4);
  const int k0 = slice * kD;
  const int rows = K - k0 < kD ? K - k0 : kD;
  const Tensor& d_o = args.d_o;
  Tensor u;
  u.data = args.u_half;
  u.elem = Elem::kBF16;
  u.s3 = 1;
  u.vector = V % 8 == 0;

  const auto* pairs = args.pairs + 2 * tile * kC * kC;
  copy_tile<kC, kWideThreads>(pairs, smem_address(s.d_n));
  copy_tile<kC, kWideThreads>(pairs + kC * kC, smem_address(s.p));
  if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
  float acc_q[kD / 32][4];
  float acc_y[kD / 32][4];
  float acc_c[kD / 32][4];
  clear(acc_q);
  clear(acc_y);
  clear(acc_c);
  float dot = 0.0F;  // of channel tid / 4
#pragma unroll 1
  for (int v0 = 0; v0 < V; v0 += kD) {
    const int cols = V - v0 < kD ? V - v0 : kD;
    if (v0 > 0) __syncthreads();  // the last slice has been read
    copy_slice<kD, kPlain>(args.h, chunk_index * args.h.s0 + hv * args.h.s1 + k0 * args.h.s2 + v0,
                           args.h.s2, rows, cols, s.s);
    copy_slice<kD, kPlain>(
        args.d_states,
        chunk_index * args.d_states.s0 + hv * args.d_states.s1 + k0 * args.d_states.s2 + v0,
        args.d_states.s2, rows, cols, s.d);
    copy_slice<kC, kPlain>(args.x, chunk_index * args.x.s0 + hv * args.x.s1 + v0, args.x.s2, kC,
                           cols, s.x);
    copy_slice<kC, kPlain>(u, tile * kC * V + v0, V, kC, cols, s.u);
    copy_slice<kC, kPlain>(d_o, chunk.row * d_o.s0 + chunk.begin * d_o.s1 + hv * d_o.s2 + v0,
                           d_o.s1, d_o.data == nullptr ? 0 : chunk.length, cols, s.d_o);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();  // operands before their readers
    local_products<kD, kD>(s, row0, col, lane, acc_q, acc_y, acc_c);
    dot += state_dot<kD>(s.s, s.d, tid / 4);
  }
  if (tid % 4 == 0) s.sd[tid / 4] = dot;
  local_sweeps<kD, kD, kPlain, true>(args, chunk, tile, hv, slice, s, acc_q, acc_y, acc_c);
}

}  // namespace kda::cuda
