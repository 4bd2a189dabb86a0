// Warpgroup matrix products (sm_90a): D [64, N] f32 in registers += A [64, 16] in registers times
// B [16, N] in shared memory. Warp w of the warpgroup holds rows 16 w .. 16 w + 15 in the fragment
// layout of mma.cuh, so accumulators rounded to 16 bits are the A operand of a next product.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

// How B lies in shared memory. kRows128: rows of 128 bytes, 16-byte pieces permuted by
// piece ^ (row % 8), 8-row groups of 1024 bytes. kCores: 8 rows x 16 bytes, contiguous.
enum class Swizzle : std::uint64_t { kCores = 0, kRows128 = 1 };

// `lead` and `stride` in bytes: for B with k contiguous (K-major), the steps from one 16-byte
// column of cores to the next (kCores only) and between groups of 8 rows n; for B with n contiguous
// (transposed), the steps between 64-element columns and between groups of 8 rows k.
__device__ inline std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t lead,
                                                  std::uint32_t stride, Swizzle swizzle) {
  return static_cast<std::uint64_t>((address & 0x3ffffU) >> 4) |
         (static_cast<std::uint64_t>(lead >> 4) << 16) |
         (static_cast<std::uint64_t>(stride >> 4) << 32) |
         (static_cast<std::uint64_t>(swizzle) << 62);
}

// The matrix `bytes` (a multiple of 16) further on.
__device__ inline std::uint64_t advance_descriptor(std::uint64_t descriptor, std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xffffffff00000000ULL) | low;  // addresses never carry out of their field
}

// Registers written before are visible to the products that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Keeps the compiler from moving or copying accumulators across this point.
template <int kCount>
__device__ inline void wgmma_pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(x[i])::"memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// (y | z) -= a b, 32 columns: 16 in each array; b K-major.
__device__ inline void wgmma_subtract_pair(float (&y)[8], float (&z)[8],
                                           const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
      "%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, keep, -1, 1, 0;\n}"
      : "+f"(y[0]), "+f"(y[1]), "+f"(y[2]), "+f"(y[3]), "+f"(y[4]), "+f"(y[5]), "+f"(y[6]),
        "+f"(y[7]), "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3]), "+f"(z[4]), "+f"(z[5]),
        "+f"(z[6]), "+f"(z[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// d -= a b, 16 columns, b K-major.
__device__ inline void wgmma_subtract16(float (&d)[8], const std::uint32_t (&a)[4],
                                        std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,"
      "%9,%10,%11}, %12, keep, -1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// d = a b, 16 columns, b K-major.
__device__ inline void wgmma_set16(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,"
      "%9,%10,%11}, %12, keep, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(0));
}

// d += a b, 16 columns, b K-major.
__device__ inline void wgmma_add16(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,"
      "%9,%10,%11}, %12, keep, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// d += a b, 64 columns, n contiguous in b.
__device__ inline void wgmma_add_wide(float (&d)[32], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
      "%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
      "%31}, {%32,%33,%34,%35}, %36, keep, 1, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// d += a b, 128 columns, n contiguous in b.
__device__ inline void wgmma_add_wide(float (&d)[64], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"
      ",%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30"
      ",%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51"
      ",%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, keep, 1, "
      "1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

}  // namespace kda::cuda::ptx
