// Warp matrix products (sm_80). Fragments, with r = lane / 4, c = lane % 4:
//   A 16x16: a0 (r; 2c, 2c+1), a1 (r+8; ..), a2 (r; 2c+8, ..), a3 (r+8; 2c+8, ..)
//   B 16x8:  b0 (2c, 2c+1; r), b1 (2c+8, 2c+9; r)
//   C 16x8:  c0 c1 (r; 2c, 2c+1), c2 c3 (r+8; ..)
// So two neighbouring C tiles, rounded to 16 bits, are an A fragment.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b.
__device__ inline void mma_bf16_set(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

// K = 8: a0 (r; 2c, 2c+1), a1 (r+8; ..), b (2c, 2c+1; r).
__device__ inline void mma_bf16_k8(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                   std::uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace kda::cuda::ptx
