/// One function, compiled for several instruction sets and chosen at program start. No contraction
/// to FMA happens under ISO C++ rules of GCC, so all clones give the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KDA_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KDA_SIMD_CLONES
#endif
