/// Counter-based random numbers: the same numbers on every machine, in any order.
#pragma once

#include <array>
#include <cstdint>

namespace kda::model {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): 128 random bits of the key and the counter.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// Two uniforms in [0,1) with 53 bits each, of key `seed` and counter (stream, index).
std::array<double, 2> philox_uniforms(std::uint64_t seed, std::uint64_t stream,
                                      std::uint64_t index);

}  // namespace kda::model
