// Which tokens a block works on.
#pragma once

#include "cuda/args.h"

namespace kda::cuda {

inline constexpr int kC = 64;  // tokens per chunk

// Tokens [begin, begin + length) of batch row `row`; length <= 64, 0: no such chunk.
struct Chunk {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  int length = 0;
};

__device__ inline Chunk chunk_at(const ChunkMap& map, std::int64_t c) {
  Chunk chunk;
  std::int64_t end = map.T;
  if (map.chunk_seq == nullptr) {  // a launch has fewer than 2^31 chunks: no long division
    const auto per_row = static_cast<std::uint32_t>(map.per_row);
    const std::uint32_t row = static_cast<std::uint32_t>(c) / per_row;
    chunk.row = row;
    chunk.begin = static_cast<std::int64_t>(static_cast<std::uint32_t>(c) - row * per_row) * kC;
  } else {
    const std::int32_t n = map.chunk_seq[c];
    if (n < 0) return chunk;
    chunk.begin = map.offsets[n] + (c - map.first_chunk[n]) * kC;
    end = map.offsets[n + 1];
  }
  chunk.length = static_cast<int>(end - chunk.begin < kC ? end - chunk.begin : kC);
  return chunk;
}

// A whole sequence, for the scans.
struct SequenceSpan {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t length = 0;
  std::int64_t first_chunk = 0;
};

__device__ inline SequenceSpan sequence_at(const ChunkMap& map, std::int64_t n) {
  if (map.chunk_seq == nullptr && map.offsets == nullptr) {
    return {n, 0, map.T, n * map.per_row};
  }
  return {0, map.offsets[n], map.offsets[n + 1] - map.offsets[n], map.first_chunk[n]};
}

}  // namespace kda::cuda
