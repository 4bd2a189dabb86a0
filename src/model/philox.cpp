#include "model/philox.h"

namespace kda::model {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

std::array<double, 2> philox_uniforms(std::uint64_t seed, std::uint64_t stream,
                                      std::uint64_t index) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto bits =
      philox4x32({low(index), high(index), low(stream), high(stream)}, {low(seed), high(seed)});
  const auto uniform = [](std::uint32_t a, std::uint32_t b) {
    const std::uint64_t word = (std::uint64_t{a} << 32) | b;
    return static_cast<double>(word >> 11) * 0x1p-53;
  };
  return {uniform(bits[0], bits[1]), uniform(bits[2], bits[3])};
}

}  // namespace kda::model
