#include "ref/l2norm.h"

#include "ref/element.h"
#include "ref/head.h"

namespace kda::ref {

// Batch row b as the one "sequence" that read_rows and write_rows expect.
static core::Sequence whole_row(const Dims& dims, std::int64_t b) { return {b, 0, dims.T, 0}; }

template <typename Real>
void l2norm_forward(const L2NormForwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  const auto eps = static_cast<Real>(params.eps);
  for (std::int64_t b = 0; b < d.B; ++b) {
    for (std::int64_t h = 0; h < d.H; ++h) {
      Matrix<Real> x = read_rows<Real>(params.x, whole_row(d, b), h);
      for (std::int64_t t = 0; t < d.T; ++t) {
        const Real rstd = l2norm_rstd(x.row(t), d.K, eps);
        for (std::int64_t k = 0; k < d.K; ++k)
          x(t, k) *= rstd;
        if (params.rstd.defined()) store(params.rstd, rstd, b, t, h);
      }
      write_rows(x, params.y, whole_row(d, b), h);
    }
  }
}

template <typename Real>
void l2norm_backward(const L2NormBackwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  const auto eps = static_cast<Real>(params.eps);
  for (std::int64_t b = 0; b < d.B; ++b) {
    for (std::int64_t h = 0; h < d.H; ++h) {
      const Matrix<Real> x = read_rows<Real>(params.x, whole_row(d, b), h);
      const Matrix<Real> dy = read_rows<Real>(params.dy, whole_row(d, b), h);
      Matrix<Real> dx(d.T, d.K);
      for (std::int64_t t = 0; t < d.T; ++t) {
        l2norm_backward_row(x.row(t), dy.row(t), dx.row(t), d.K, eps);
      }
      write_rows(dx, params.dx, whole_row(d, b), h);
    }
  }
}

#define KDA_REF_INSTANTIATE(Real)                                                       \
  template void l2norm_forward<Real>(const L2NormForwardParams&, const core::Problem&); \
  template void l2norm_backward<Real>(const L2NormBackwardParams&, const core::Problem&);
KDA_REF_INSTANTIATE(float)
KDA_REF_INSTANTIATE(double)
#undef KDA_REF_INSTANTIATE

}  // namespace kda::ref
