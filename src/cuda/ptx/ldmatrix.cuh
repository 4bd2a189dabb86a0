// Four 8x8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of
// matrix l / 8 and gets elements (r; 2c, 2c+1), transposed: (2c, 2c+1; r), of each (sm_75).
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline void ldmatrix(std::uint32_t (&d)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

__device__ inline void ldmatrix_trans(std::uint32_t (&d)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

// The reverse of ldmatrix (sm_90).
__device__ inline void stmatrix(std::uint32_t address, const std::uint32_t (&d)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
               : "memory");
}

// The reverse of ldmatrix_trans: elements (2c, 2c+1; r) become rows (sm_90).
__device__ inline void stmatrix_trans(std::uint32_t address, const std::uint32_t (&d)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
               : "memory");
}

// Transposes an 8x8 matrix held by the warp: element (r; 2c, 2c+1) becomes (2c, 2c+1; r) (sm_75).
__device__ inline std::uint32_t movmatrix(std::uint32_t a) {
  std::uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

}  // namespace kda::cuda::ptx
