// Which Highway targets are compiled; include this before any Highway header. The 128-bit SSSE3 and
// the AVX-512 variants beyond the first add nothing to f32 arithmetic but compile time.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | KDA_HWY_AVX3_ZEN4 | KDA_HWY_AVX3_SPR)
// Bits of targets that only newer Highway releases know by name.
#define KDA_HWY_AVX3_ZEN4 (1LL << 6)
#define KDA_HWY_AVX3_SPR (1LL << 4)
