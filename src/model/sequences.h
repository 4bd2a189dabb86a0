/// Where the sequences of a packed run begin, in the forms that the layers need.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "model/observe.h"

namespace kda::model {

struct Sequences {
  at::Tensor cu_host;    ///< [N+1] i64 on the host
  at::Tensor cu_device;  ///< the same where the activations are
  at::Tensor cu_i32;     ///< the same in i32, on CUDA devices only: attention kernels want it
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
  std::int64_t longest = 0;     ///< tokens of the longest sequence
  bool one_token_each = false;  ///< a decode step

  Sequences(const at::Tensor& cu_seqlens, c10::Device device);
};

template <>
struct ObservedParts<Sequences> {
  template <typename Visit>
  static void tensors(Sequences& value, Visit&& visit) {
    visit("cu_seqlens", value.cu_host);
  }
};

}  // namespace kda::model
