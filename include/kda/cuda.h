/// The CUDA backend: present in programs that link the library kda_cuda.
///
/// It serves NVIDIA GPUs from compute capability 8.0 on; q, k, v in f32, bf16 or f16, any K and V
/// up to 256. Calls are asynchronous on `Context::stream` (a cudaStream_t), never allocate, never
/// synchronise with the host and may be captured into a CUDA graph. Scratch memory comes from
/// `Context::workspace` and must be device memory. `cu_seqlens` and pool slots may lie in device
/// memory; offsets there are clamped to be non-decreasing and within [0, T], since their values
/// cannot be checked without waiting for the device.
#pragma once

namespace kda::cuda {

/// Makes Backend::kCuda available to the functions of this library. Idempotent, thread safe.
void register_backend();

}  // namespace kda::cuda
