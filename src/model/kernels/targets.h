// Include before hwy/foreach_target.h. Instruction sets that the host kernels are not compiled for:
// scalable vectors cannot be array elements, and SSSE3 gains nothing over SSE4.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
