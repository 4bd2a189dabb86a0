/// What the CPU backend found on this machine.
#pragma once

namespace kda {

/// Name of the instruction set that the CPU backend uses here, as Highway calls it: "AVX2",
/// "AVX3" (AVX-512), "NEON", "SSE2", ... Chosen once per process, by the CPU.
const char* cpu_simd_target();

}  // namespace kda
