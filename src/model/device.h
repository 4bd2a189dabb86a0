/// Where a tensor lives, as the layers need it.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// The stream that work on this CUDA tensor goes to, as the opaque handle of kda::Context.
void* current_stream(const at::Tensor& tensor);

/// Whether the layers have kernels of their own for it: any host tensor, f32 and bf16 on CUDA
/// devices. Other tensors (f64 on CUDA, meta) go through torch's operators.
bool has_kernels(const at::Tensor& tensor);

}  // namespace kda::model
