// Eight neighbouring elements of a row of a [B,T,heads,dim] tensor, as floats and back.
#pragma once

#include "cuda/tile/element.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda {

struct Eight {
  float x[8];
};

// The rare case, out of line to keep the kernels' code within the instruction cache.
static __device__ __noinline__ Eight load8_slow(const Tensor& t, std::int64_t offset, int d,
                                                int dim) {
  Eight out;
  if (t.vector && d + 8 <= dim && t.elem == Elem::kF32) {
    const auto* from =
        reinterpret_cast<const float4*>(static_cast<const float*>(t.data) + offset + d);
    const float4 a = __ldg(from);
    const float4 b = __ldg(from + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  if (t.vector && d + 8 <= dim && t.elem == Elem::kF16) {
    const uint4 raw = __ldg(
        reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(t.data) + offset + d));
    const std::uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
      out.x[2 * i] = pair.x;
      out.x[2 * i + 1] = pair.y;
    }
    return out;
  }
#pragma unroll 1
  for (int i = 0; i < 8; ++i)
    out.x[i] = d + i < dim ? load(t, offset + (d + i) * t.s3) : 0.0F;
  return out;
}

__device__ inline void unpack8(const uint4& raw, float (&x)[8]) {
  const std::uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = low_of(w[i]);
    x[2 * i + 1] = high_of(w[i]);
  }
}

// Elements [d, d + 8) of the row at `offset`; 0 at and past `dim`. kPlain: the tensor is known to
// be bf16 with `vector` set and d + 8 <= dim: no code for anything else.
template <bool kPlain = false>
__device__ inline void load8(const Tensor& t, std::int64_t offset, int d, int dim, float (&x)[8]) {
  if (kPlain || (t.vector && t.elem == Elem::kBF16 && d + 8 <= dim)) {
    unpack8(__ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(t.data) +
                                                 offset + d)),
            x);
    return;
  }
  const Eight slow = load8_slow(t, offset, d, dim);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    x[i] = slow.x[i];
}

// Elements (d, d + 1) of a row, out of line and inline.
static __device__ __noinline__ float2 load_pair_slow(const Tensor& t, std::int64_t offset, int d,
                                                     int dim) {
  return make_float2(d < dim ? load(t, offset + d * t.s3) : 0.0F,
                     d + 1 < dim ? load(t, offset + (d + 1) * t.s3) : 0.0F);
}
template <bool kPlain = false>
__device__ inline float2 load_pair(const Tensor& t, std::int64_t offset, int d, int dim) {
  if (kPlain || (t.vector && t.elem == Elem::kBF16 && d + 2 <= dim)) {
    const std::uint32_t x = __ldg(reinterpret_cast<const std::uint32_t*>(
        static_cast<const std::uint16_t*>(t.data) + offset + d));
    return make_float2(low_of(x), high_of(x));
  }
  return load_pair_slow(t, offset, d, dim);
}

static __device__ __noinline__ void store_pair_slow(const Tensor& t, std::int64_t offset, int d,
                                                    int dim, float a, float b) {
  if (d < dim) store(t, offset + d * t.s3, a);
  if (d + 1 < dim) store(t, offset + (d + 1) * t.s3, b);
}
template <bool kPlain = false>
__device__ inline void store_pair(const Tensor& t, std::int64_t offset, int d, int dim, float a,
                                  float b) {
  if (kPlain || (t.vector && t.elem == Elem::kBF16 && d + 2 <= dim)) {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(t.data) + offset + d) =
        pack_bf16(a, b);
  } else {
    store_pair_slow(t, offset, d, dim, a, b);
  }
}

}  // namespace kda::cuda
