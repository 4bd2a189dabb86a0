// Moves rows between tensors of any stride and dtype and f32 scratch.
#include "core/float16.h"
#include "cpu/rows.h"
#include "cpu/simd-inl.h"
#include "hwy/cache_control.h"

#if defined(KDA_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_ROWS_INL_H_
#undef KDA_CPU_ROWS_INL_H_
#else
#define KDA_CPU_ROWS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U16Half = hn::Rebind<std::uint16_t, F32>;

HWY_INLINE Vec load_bf16(const std::uint16_t* p) {
  const hn::RebindToUnsigned<F32> du;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(U16Half(), p))));
}

// The bf16 nearest to each lane (ties to even) as 32-bit patterns; a NaN stays one.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<F32>> bf16_bits(Vec v) {
  const hn::RebindToUnsigned<F32> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffU)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000U));
  return hn::And(hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded),
                 hn::Set(du, 0xffff0000U));
}
HWY_INLINE Vec rounded_to_bf16(Vec v) { return hn::BitCast(F32(), bf16_bits(v)); }

HWY_INLINE void store_bf16(Vec v, std::uint16_t* p) {
  const hn::RebindToSigned<F32> di;
  // The 16-bit value is non-negative as i32, so the saturating demotion keeps its bits.
  const auto high = hn::BitCast(di, hn::ShiftRight<16>(bf16_bits(v)));
  hn::StoreU(hn::DemoteTo(U16Half(), high), U16Half(), p);
}

HWY_INLINE float load_element(const std::byte* p, DType dtype) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float*>(p);
  return core::bf16_to_float(*reinterpret_cast<const std::uint16_t*>(p));
}
HWY_INLINE void store_element(float x, std::byte* p, DType dtype) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float*>(p) = x;
  } else {
    *reinterpret_cast<std::uint16_t*>(p) = core::float_to_bf16(x);
  }
}

// `count` rows of n elements into dst (rows `ld` apart); elements n..width are set to 0.
inline HWY_NOINLINE void load_rows(const Rows& src, std::size_t count, std::size_t n,
                                   std::size_t width, float* dst, std::size_t ld) {
  const std::size_t whole = src.step == 1 ? n / kLanes * kLanes : 0;
  const auto size = static_cast<std::int64_t>(size_of(src.dtype));
  for (std::size_t t = 0; t < count; ++t) {
    const std::byte* row = src.data + static_cast<std::int64_t>(t) * src.row * size;
    float* out = dst + t * ld;
    if (src.dtype == DType::kF32) {
      const auto* p = reinterpret_cast<const float*>(row);
      for (std::size_t i = 0; i < whole; i += kLanes)
        store(load(p + i), out + i);
    } else {
      const auto* p = reinterpret_cast<const std::uint16_t*>(row);
      for (std::size_t i = 0; i < whole; i += kLanes)
        store(load_bf16(p + i), out + i);
    }
    for (std::size_t i = whole; i < n; ++i) {
      out[i] = load_element(row + static_cast<std::int64_t>(i) * src.step * size, src.dtype);
    }
    for (std::size_t i = n; i < width; ++i)
      out[i] = 0.0F;
  }
}

inline HWY_NOINLINE void store_rows(const float* src, std::size_t ld, std::size_t count,
                                    std::size_t n, const RowsOut& dst) {
  const std::size_t whole = dst.step == 1 ? n / kLanes * kLanes : 0;
  const auto size = static_cast<std::int64_t>(size_of(dst.dtype));
  for (std::size_t t = 0; t < count; ++t) {
    std::byte* row = dst.data + static_cast<std::int64_t>(t) * dst.row * size;
    const float* in = src + t * ld;
    if (dst.dtype == DType::kF32) {
      auto* p = reinterpret_cast<float*>(row);
      for (std::size_t i = 0; i < whole; i += kLanes)
        store(load(in + i), p + i);
    } else {
      auto* p = reinterpret_cast<std::uint16_t*>(row);
      for (std::size_t i = 0; i < whole; i += kLanes)
        store_bf16(load(in + i), p + i);
    }
    for (std::size_t i = whole; i < n; ++i) {
      store_element(in[i], row + static_cast<std::int64_t>(i) * dst.step * size, dst.dtype);
    }
  }
}

HWY_INLINE void fill_rows(float* dst, std::size_t ld, std::size_t count, std::size_t width,
                          float value) {
  for (std::size_t t = 0; t < count; ++t) {
    for (std::size_t i = 0; i < width; ++i)
      dst[t * ld + i] = value;
  }
}

// Row-major f32 rows to compute from: the tensor's own memory where it can be read in whole
// vectors, else a copy.
struct Block {
  const float* at;
  std::size_t ld;
};

// `total` rows of which `count` exist; the others are 0.
HWY_INLINE Block block_of(const Rows& src, std::size_t count, std::size_t total, std::size_t n,
                          std::size_t width, float* copy, std::size_t ld) {
  if (src.plain_f32() && count == total && n == width && src.row > 0) {
    return {reinterpret_cast<const float*>(src.data), static_cast<std::size_t>(src.row)};
  }
  load_rows(src, count, n, width, copy, ld);
  fill_rows(copy + count * ld, ld, total - count, width, 0.0F);
  return {copy, ld};
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
