// A dense tensor of doubles on the host: how tests make inputs and look at outputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/float16.h"
#include "kda/types.h"

namespace kda::test {

struct HostTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> data;

  HostTensor() = default;
  explicit HostTensor(std::vector<std::int64_t> extents, double fill = 0.0)
      : shape(std::move(extents)) {
    std::int64_t n = 1;
    for (std::int64_t extent : shape)
      n *= extent;
    data.assign(static_cast<std::size_t>(n), fill);
  }

  bool defined() const { return !shape.empty(); }
  std::int64_t extent(std::size_t dim) const { return shape[dim]; }

  template <typename... Index>
  double& at(Index... indices) {
    return data[position(indices...)];
  }
  template <typename... Index>
  double at(Index... indices) const {
    return data[position(indices...)];
  }

 private:
  template <typename... Index>
  std::size_t position(Index... indices) const {
    std::int64_t p = 0;
    std::size_t dim = 0;
    ((p = p * shape[dim++] + static_cast<std::int64_t>(indices)), ...);
    return static_cast<std::size_t>(p);
  }
};

inline double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kBF16:
      return core::bf16_to_float(core::float_to_bf16(static_cast<float>(value)));
    case DType::kF16:
      return core::f16_to_float(core::float_to_f16(static_cast<float>(value)));
    default:
      return value;
  }
}

inline HostTensor rounded(HostTensor tensor, DType dtype) {
  for (double& x : tensor.data)
    x = rounded(x, dtype);
  return tensor;
}

inline double rms(const HostTensor& tensor) {
  if (tensor.data.empty()) return 0.0;
  double sum = 0.0;
  for (double x : tensor.data)
    sum += x * x;
  return std::sqrt(sum / static_cast<double>(tensor.data.size()));
}

}  // namespace kda::test
