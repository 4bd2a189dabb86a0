// Spreads the cache misses of the coming chunk over the arithmetic of the current one. Rows of one
// head lie H * K elements apart, which hardware prefetchers do not follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/rows.h"

namespace kda::cpu {

class Prefetcher {
 public:
  // `rows` rows of n elements; call for every tensor of the coming chunk.
  template <typename Byte>
  void add(const BasicRows<Byte>& src, std::size_t rows, std::size_t n, bool write = false) {
    if (!src.defined() || src.step != 1 || rows == 0) return;
    const auto size = static_cast<std::int64_t>(size_of(src.dtype));
    streams_[count_++] = {src.data, src.row * size, rows, n * static_cast<std::size_t>(size),
                          write};
  }
  // Forgets what is left.
  void clear() {
    count_ = 0;
    stream_ = 0;
    row_ = 0;
    byte_ = 0;
  }
  // Asks for the next `lines` cache lines. They go to the second-level cache: the first is full of
  // the current chunk.
  void advance(std::size_t lines) {
    for (; lines > 0 && stream_ < count_; --lines) {
      const Stream& s = streams_[stream_];
      const std::byte* at = s.data + static_cast<std::int64_t>(row_) * s.row_bytes + byte_;
      if (s.write) {
        __builtin_prefetch(at, 1, 2);
      } else {
        __builtin_prefetch(at, 0, 2);
      }
      byte_ += 64;
      if (byte_ < s.bytes) continue;
      byte_ = 0;
      if (++row_ < s.rows) continue;
      row_ = 0;
      ++stream_;
    }
  }
  std::size_t lines() const {
    std::size_t total = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      total += streams_[i].rows * ((streams_[i].bytes + 63) / 64);
    }
    return total;
  }

 private:
  struct Stream {
    const std::byte* data;
    std::int64_t row_bytes;
    std::size_t rows;
    std::size_t bytes;
    bool write;
  };
  Stream streams_[12];
  std::size_t count_ = 0;
  std::size_t stream_ = 0;
  std::size_t row_ = 0;
  std::size_t byte_ = 0;
};

}  // namespace kda::cpu
