/// Random numbers whose sequence is part of this project's file formats: a run resumed by another
/// build, compiler or machine must see the same data order, so no std:: engine or shuffle is used.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace kda::text {

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// SplitMix64 stream.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}
  /// Independent stream for a (seed, stream) pair.
  constexpr SplitMix64(std::uint64_t seed, std::uint64_t stream)
      : state_(mix64(seed + 0x9E3779B97F4A7C15ull) ^ mix64(mix64(stream + 0xD1B54A32D192ED03ull))) {
  }

  constexpr std::uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15ull); }

  /// Uniform in [0, bound), without modulo bias (Lemire 2019). `bound` > 0.
  constexpr std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
      const unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
      if (static_cast<std::uint64_t>(product) >= threshold) {
        return static_cast<std::uint64_t>(product >> 64);
      }
    }
  }

 private:
  std::uint64_t state_;
};

/// Permutation of 0 … count − 1: Fisher–Yates from the end, i = count−1 … 1 swaps i with
/// SplitMix64(seed, epoch).below(i + 1).
inline std::vector<std::uint32_t> shuffled_indices(std::uint32_t count, std::uint64_t seed,
                                                   std::uint64_t epoch) {
  std::vector<std::uint32_t> order(count);
  for (std::uint32_t i = 0; i < count; ++i)
    order[i] = i;
  SplitMix64 random(seed, epoch);
  for (std::uint32_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::uint32_t>(random.below(i))]);
  }
  return order;
}

}  // namespace kda::text
