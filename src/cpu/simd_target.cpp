// The name of the instruction set that run-time dispatch chooses: asked of the dispatch itself, so
// it cannot differ from what the operators use.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_target.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kda/cpu_info.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu::HWY_NAMESPACE {

const char* simd_target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace kda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::cpu {
namespace {

HWY_EXPORT(simd_target_name);

const char* chosen_name() { return HWY_DYNAMIC_DISPATCH(simd_target_name)(); }

}  // namespace
}  // namespace kda::cpu

namespace kda {

const char* cpu_simd_target() { return cpu::chosen_name(); }

}  // namespace kda
#endif
