// L2 normalisation of rows, forward and backward.
#include "cpu/chunk_factors-inl.h"
#include "cpu/gate_call.h"
#include "kda/ops/l2norm.h"

#if defined(KDA_CPU_L2NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_L2NORM_INL_H_
#undef KDA_CPU_L2NORM_INL_H_
#else
#define KDA_CPU_L2NORM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline std::size_t l2norm_row_floats(std::size_t k) {
  return padded_row((k + kLanes - 1) / kLanes * kLanes);
}

HWY_INLINE float row_dot(const float* a, const float* b, std::size_t width) {
  Vec sum = zero();
  for (std::size_t d = 0; d < width; d += kLanes)
    sum = hn::MulAdd(load(a + d), load(b + d), sum);
  return lane_sum(sum);
}

inline void l2norm_forward_task(const L2NormForwardParams& params, const core::Problem& p,
                                std::int64_t task, std::size_t width, float* row) {
  const TokenRange at = token_range(p.dims, task);
  const auto k = static_cast<std::size_t>(p.dims.K);
  for (std::int64_t h = 0; h < p.dims.H; ++h) {
    const Rows x = rows_of(params.x, at.row, at.begin, h);
    const RowsOut y = rows_of(params.y, at.row, at.begin, h);
    const RowsOut rstd = rows_of(params.rstd, at.row, at.begin, h);
    for (std::int64_t t = 0; t < at.count; ++t) {
      load_rows(x.from(t), 1, k, width, row, width);
      const float r = 1.0F / std::sqrt(row_dot(row, row, width) + static_cast<float>(params.eps));
      for (std::size_t d = 0; d < width; d += kLanes) {
        store(hn::Mul(load(row + d), splat(r)), row + d);
      }
      store_rows(row, width, 1, k, y.from(t));
      if (rstd.defined()) store_element(r, rstd.from(t).data, rstd.dtype);
    }
  }
}

inline void l2norm_backward_task(const L2NormBackwardParams& params, const core::Problem& p,
                                 std::int64_t task, std::size_t width, float* rows) {
  const TokenRange at = token_range(p.dims, task);
  const auto k = static_cast<std::size_t>(p.dims.K);
  float* x_row = rows;
  float* dy_row = rows + width;
  for (std::int64_t h = 0; h < p.dims.H; ++h) {
    const Rows x = rows_of(params.x, at.row, at.begin, h);
    const Rows dy = rows_of(params.dy, at.row, at.begin, h);
    const RowsOut dx = rows_of(params.dx, at.row, at.begin, h);
    for (std::int64_t t = 0; t < at.count; ++t) {
      load_rows(x.from(t), 1, k, width, x_row, width);
      load_rows(dy.from(t), 1, k, width, dy_row, width);
      const float r =
          1.0F / std::sqrt(row_dot(x_row, x_row, width) + static_cast<float>(params.eps));
      // (dy . y) y with y = r x
      const float along = row_dot(dy_row, x_row, width) * r * r;
      for (std::size_t d = 0; d < width; d += kLanes) {
        const Vec across = hn::NegMulAdd(splat(along), load(x_row + d), load(dy_row + d));
        store(hn::Mul(splat(r), across), dy_row + d);
      }
      store_rows(dy_row, width, 1, k, dx.from(t));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
