// A row-major matrix, zero at birth: the only container of the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kda::ref {

template <typename Real>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), data_(static_cast<std::size_t>(rows * cols), Real(0)) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  Real* row(std::int64_t i) { return data_.data() + i * cols_; }
  const Real* row(std::int64_t i) const { return data_.data() + i * cols_; }
  Real& operator()(std::int64_t i, std::int64_t j) { return row(i)[j]; }
  Real operator()(std::int64_t i, std::int64_t j) const { return row(i)[j]; }

 private:
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::vector<Real> data_;
};

template <typename Real>
Real dot(const Real* a, const Real* b, std::int64_t n) {
  Real sum = 0;
  for (std::int64_t i = 0; i < n; ++i)
    sum += a[i] * b[i];
  return sum;
}

// y += c * x
template <typename Real>
void add_scaled(Real* y, Real c, const Real* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    y[i] += c * x[i];
}

}  // namespace kda::ref
