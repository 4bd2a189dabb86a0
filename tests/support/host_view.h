// Views of HostTensors, for calls in double without any copy.
#pragma once

#include "kda/tensor_view.h"
#include "support/host_tensor.h"

namespace kda::test {

inline TensorView f64_view(HostTensor& tensor) {
  TensorView view;
  view.data = tensor.data.data();
  view.dtype = DType::kF64;
  view.rank = static_cast<int>(tensor.shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    view.shape[d] = tensor.shape[d];
    view.stride[d] = stride;
    stride *= tensor.shape[d];
  }
  return view;
}

inline ConstTensorView f64_view(const HostTensor& tensor) {
  return f64_view(const_cast<HostTensor&>(tensor));  // read-only again by the return type
}

}  // namespace kda::test
