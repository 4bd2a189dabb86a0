// Register tiles, dot products, transposition, row movers and the chunk's key-side factors against
// plain loops.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tiles_test.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/bwd_products-inl.h"
#include "cpu/chunk_load-inl.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {

std::size_t lanes() { return kLanes; }
void call_multiply(float* a, std::size_t ld_a, std::size_t rows, std::size_t depth, float* b,
                   std::size_t ld_b, std::size_t cols, float* c, std::size_t ld_c) {
  multiply({a, ld_a}, rows, depth, {b, ld_b}, cols, {c, ld_c});
}
void call_dots(const float* a, std::size_t rows, const float* b, std::size_t cols,
               std::size_t width, float* out) {
  dots({a, width}, rows, {b, width}, cols, width, out, cols);
}
void call_transpose(const float* src, std::size_t rows, std::size_t cols, float* dst) {
  transpose(src, cols, rows, cols, dst, rows);
}
void call_load_rows(const Rows& src, std::size_t count, std::size_t n, std::size_t width,
                    float* dst) {
  load_rows(src, count, n, width, dst, width);
}
void call_store_rows(const float* src, std::size_t ld, std::size_t count, std::size_t n,
                     const RowsOut& dst) {
  store_rows(src, ld, count, n, dst);
}
void call_factors(const float* alpha, const float* q, const float* k, std::size_t width,
                  const ChunkFactors& f) {
  chunk_factors({alpha, f.ld_k}, {q, f.ld_k}, {k, f.ld_k}, width, f);
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "../cpu/simd_targets.h"
#include "support/random.h"

namespace kda::cpu {
HWY_EXPORT(lanes);
HWY_EXPORT(call_multiply);
HWY_EXPORT(call_dots);
HWY_EXPORT(call_transpose);
HWY_EXPORT(call_load_rows);
HWY_EXPORT(call_store_rows);
HWY_EXPORT(call_factors);

namespace {

using test::for_each_simd_target;
using test::Random;

std::vector<float> random_floats(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x)
    value = static_cast<float>(random.normal());
  return x;
}

TEST(Tiles_Multiply, MatchesPlainLoopsForEveryTail) {
  for_each_simd_target([](const char*) {
    const std::size_t step = HWY_DYNAMIC_DISPATCH(lanes)();
    for (std::size_t rows : {4, 12, 32}) {
      for (std::size_t depth : {1, 7, 60}) {
        for (std::size_t vectors : {1, 2, 3, 5}) {
          const std::size_t cols = vectors * step;
          const std::size_t ld_a = depth + 3;
          const std::size_t ld = cols + 5;
          std::vector<float> a = random_floats(rows * ld_a, 1);
          std::vector<float> b = random_floats(depth * ld, 2);
          std::vector<float> c(rows * ld, 99.0F);
          HWY_DYNAMIC_DISPATCH(call_multiply)
          (a.data(), ld_a, rows, depth, b.data(), ld, cols, c.data(), ld);
          for (std::size_t m = 0; m < rows; ++m) {
            for (std::size_t n = 0; n < ld; ++n) {
              double sum = 0.0;
              for (std::size_t d = 0; d < depth && n < cols; ++d) {
                sum += static_cast<double>(a[m * ld_a + d]) * static_cast<double>(b[d * ld + n]);
              }
              const double want = n < cols ? sum : 99.0;
              ASSERT_NEAR(static_cast<double>(c[m * ld + n]), want, 2e-5)
                  << rows << "x" << depth << "x" << cols << " at " << m << "," << n;
            }
          }
        }
      }
    }
  });
}

TEST(Tiles_Dots, MatchPlainLoops) {
  for_each_simd_target([](const char*) {
    const std::size_t width = 3 * 16;
    const std::vector<float> a = random_floats(6 * width, 3);
    const std::vector<float> b = random_floats(8 * width, 4);
    std::vector<float> out(6 * 8);
    HWY_DYNAMIC_DISPATCH(call_dots)(a.data(), 6, b.data(), 8, width, out.data());
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        double sum = 0.0;
        for (std::size_t d = 0; d < width; ++d) {
          sum += static_cast<double>(a[i * width + d]) * static_cast<double>(b[j * width + d]);
        }
        EXPECT_NEAR(static_cast<double>(out[i * 8 + j]), sum, 2e-5) << i << "," << j;
      }
    }
  });
}

TEST(Tiles_Transpose, MovesEveryElementOfEveryShape) {
  for_each_simd_target([](const char*) {
    for (std::size_t rows : {1, 3, 4, 16, 61}) {
      for (std::size_t cols : {1, 4, 5, 100}) {
        const std::vector<float> x = random_floats(rows * cols, 5);
        std::vector<float> y(rows * cols, 0.0F);
        HWY_DYNAMIC_DISPATCH(call_transpose)(x.data(), rows, cols, y.data());
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t j = 0; j < cols; ++j)
            ASSERT_EQ(y[j * rows + i], x[i * cols + j]);
        }
      }
    }
  });
}

TEST(Rows_Load, AnyStrideAndDtypeWithoutTouchingWhatIsBehind) {
  for_each_simd_target([](const char*) {
    const std::size_t step = HWY_DYNAMIC_DISPATCH(lanes)();
    for (std::int64_t stride : {1, 3}) {
      for (std::size_t n : {1, 5, 60, 64}) {
        const std::size_t width = (n + step - 1) / step * step;
        const std::int64_t row = static_cast<std::int64_t>(n) * stride + 7;
        // Exactly as long as the last element needs: a sanitizer sees one read too many.
        const std::size_t total =
            static_cast<std::size_t>(row) + (n - 1) * static_cast<std::size_t>(stride) + 1;
        const std::vector<float> f32 = random_floats(total, 6);
        std::vector<std::uint16_t> bf16;
        for (float x : f32)
          bf16.push_back(core::float_to_bf16(x));
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          const void* data = dtype == DType::kF32 ? static_cast<const void*>(f32.data())
                                                  : static_cast<const void*>(bf16.data());
          std::vector<float> got(2 * width, 99.0F);
          HWY_DYNAMIC_DISPATCH(call_load_rows)
          ({static_cast<const std::byte*>(data), dtype, row, stride}, 2, n, width, got.data());
          for (std::size_t t = 0; t < 2; ++t) {
            for (std::size_t i = 0; i < width; ++i) {
              const std::size_t at =
                  t * static_cast<std::size_t>(row) + i * static_cast<std::size_t>(stride);
              float want = 0.0F;
              if (i < n) want = dtype == DType::kF32 ? f32[at] : core::bf16_to_float(bf16[at]);
              ASSERT_EQ(got[t * width + i], want) << name_of(dtype) << " n " << n << " i " << i;
            }
          }
        }
      }
    }
  });
}

TEST(Rows_Store, RoundsToNearestEvenAndKeepsNaN) {
  std::vector<float> x = random_floats(64, 8);
  x[0] = std::bit_cast<float>(0x3f808000U);  // tie: down to even
  x[1] = std::bit_cast<float>(0x3f818000U);  // tie: up to even
  x[2] = std::bit_cast<float>(0x7fffffffU);  // NaN whose rounding would wrap around
  x[3] = std::bit_cast<float>(0x7f800001U);  // NaN with low payload only
  x[4] = std::bit_cast<float>(0x7f7fffffU);  // rounds to infinity
  x[5] = -0.0F;
  x[6] = std::bit_cast<float>(0xff800000U);  // -infinity
  for_each_simd_target([&](const char*) {
    for (std::int64_t stride : {1, 2}) {
      std::vector<std::uint16_t> out(128, 0x1234);
      HWY_DYNAMIC_DISPATCH(call_store_rows)
      (x.data(), 64, 1, 61, {reinterpret_cast<std::byte*>(out.data()), DType::kBF16, 0, stride});
      for (std::size_t i = 0; i < 64; ++i) {
        const std::uint16_t got = out[i * static_cast<std::size_t>(stride)];
        const std::uint16_t want = i < 61 ? core::float_to_bf16(x[i]) : std::uint16_t{0x1234};
        if (std::isnan(x[i]) && i < 61) {
          EXPECT_TRUE(std::isnan(core::bf16_to_float(got))) << i;
        } else {
          EXPECT_EQ(got, want) << i;
        }
      }
    }
  });
}

// Decay between tokens j and i of one channel, in f64.
double decay_between(const std::vector<float>& alpha, std::size_t ld, std::size_t j, std::size_t i,
                     std::size_t d) {
  double product = 1.0;
  for (std::size_t t = j + 1; t <= i; ++t)
    product *= static_cast<double>(alpha[t * ld + d]);
  return product;
}

void expect_exact_factors(const std::vector<float>& alpha, std::size_t width, std::size_t ld) {
  const std::vector<float> q = random_floats(kChunk * ld, 11);
  const std::vector<float> k = random_floats(kChunk * ld, 12);
  Planner measure;
  plan_factors(&measure, ld);
  std::vector<float> memory(measure.bytes() / sizeof(float) + 16);
  Planner planner(memory.data());
  const ChunkFactors f = plan_factors(&planner, ld);
  for (std::size_t i = 0; i < kChunk; ++i)
    f.beta[i] = 0.25F + 0.1F * static_cast<float>(i);
  for (std::size_t d = 0; d < ld; ++d)
    f.g_sum[d] = -100.0F;  // no slow decay here
  HWY_DYNAMIC_DISPATCH(call_factors)(alpha.data(), q.data(), k.data(), width, f);
  for (std::size_t i = 0; i < kChunk; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double kk = 0.0, qk = 0.0, kk_size = 0.0, qk_size = 0.0;
      for (std::size_t d = 0; d < width; ++d) {
        const double decay = decay_between(alpha, ld, j, i, d);
        const auto kj = static_cast<double>(k[j * ld + d]);
        kk += static_cast<double>(k[i * ld + d]) * kj * decay;
        qk += static_cast<double>(q[i * ld + d]) * kj * decay;
        kk_size += std::abs(static_cast<double>(k[i * ld + d]) * kj * decay);
        qk_size += std::abs(static_cast<double>(q[i * ld + d]) * kj * decay);
      }
      EXPECT_NEAR(static_cast<double>(f.n[i * kChunk + j]), qk, 2e-6 * qk_size + 1e-37);
      if (j == i) continue;
      const auto beta = static_cast<double>(f.beta[i]);
      EXPECT_NEAR(static_cast<double>(f.lo_neg[i * kChunk + j]), -beta * kk,
                  beta * 2e-6 * kk_size + 1e-37);
    }
    for (std::size_t d = 0; d < width; ++d) {
      const auto ki = static_cast<double>(k[i * ld + d]);
      const double from_start = decay_between(alpha, ld, 0, i, d) * static_cast<double>(alpha[d]);
      const double to_end = decay_between(alpha, ld, i, kChunk - 1, d);
      ASSERT_NEAR(static_cast<double>(f.kt[i * ld + d]), ki * from_start,
                  2e-6 * std::abs(ki * from_start) + 1e-37);
      ASSERT_NEAR(static_cast<double>(f.kh[i * ld + d]), ki * to_end,
                  2e-6 * std::abs(ki * to_end) + 1e-37);
    }
  }
}

TEST(ChunkFactors_Decays, ExactForEveryGatePattern) {
  const std::size_t width = 32;
  const std::size_t ld = padded_row(width);
  for_each_simd_target([&](const char*) {
    for (float alpha : {1.0F, 0.999F, 0.5F, 6.7e-3F, 2e-9F, 0.0F, 1.5F}) {
      SCOPED_TRACE(alpha);
      expect_exact_factors(std::vector<float>(kChunk * ld, alpha), width, ld);
    }
    // Mild decays with hard resets between them.
    std::vector<float> mixed(kChunk * ld);
    Random random(13);
    for (float& a : mixed) {
      a = random.uniform() < 0.2 ? 0.0F : static_cast<float>(random.uniform());
    }
    expect_exact_factors(mixed, width, ld);
  });
}

}  // namespace
}  // namespace kda::cpu
#endif  // HWY_ONCE
