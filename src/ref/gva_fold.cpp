#include "ref/gva_fold.h"

namespace kda::ref {

template <typename Real>
std::vector<Matrix<Real>> fold_value_heads(const std::vector<Matrix<Real>>& per_value_head,
                                           std::int64_t G) {
  std::vector<Matrix<Real>> folded;
  const auto group = static_cast<std::size_t>(G);
  for (std::size_t first = 0; first < per_value_head.size(); first += group) {
    Matrix<Real> sum = per_value_head[first];
    for (std::size_t g = 1; g < group; ++g) {
      const Matrix<Real>& term = per_value_head[first + g];
      for (std::int64_t t = 0; t < sum.rows(); ++t) {
        add_scaled(sum.row(t), Real(1), term.row(t), sum.cols());
      }
    }
    folded.push_back(std::move(sum));
  }
  return folded;
}

template std::vector<Matrix<float>> fold_value_heads(const std::vector<Matrix<float>>&,
                                                     std::int64_t);
template std::vector<Matrix<double>> fold_value_heads(const std::vector<Matrix<double>>&,
                                                      std::int64_t);

}  // namespace kda::ref
