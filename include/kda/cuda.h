/// The CUDA backend: present in programs that link the library kda_cuda.
///
/// It serves NVIDIA GPUs from compute capability 8.0 on; q, k, v in f32, bf16 or f16, any K and V
/// up to 256, any strides (16-byte aligned rows are faster). On a GPU that the build has no code
/// for calls are refused (kUnsupported) with its compute capability and the compiled ones. Calls
/// are asynchronous on `Context::stream` (a cudaStream_t), never allocate, never synchronise with
/// the host and may be captured into a CUDA graph. Scratch memory comes from `Context::workspace`
/// and must be device memory. `cu_seqlens` and pool slots may lie in device memory; offsets there
/// are clamped to be non-decreasing and within [0, T], since their values cannot be checked without
/// waiting for the device; slots outside the pool are skipped. Results are bit-equal from run to
/// run, alone or in a batch or pack.
///
/// Arithmetic of the chunk calls: f32 tensors are computed in f32 throughout, and so are all calls
/// on GPUs with less than 163 KiB of shared memory per block (8.6, 8.9, 12.0). 16-bit tensors go
/// through the tensor cores: operands rounded to bf16 (f16 inputs too), sums and the running state
/// in f32, the inverse of a chunk's triangular system in f32 and split bf16. f16 inputs take bf16
/// operands too: factors inside a 16-token block span 2^+-115 and A, states and gradients have no
/// bound, which f16 could not hold. These kernels bound the decay of one token at e^-20 per
/// channel, below f32 resolution of the state. The chunk size argument does not change the work: 64
/// tokens always. Backward calls are fastest with a lower bound >= -7 (safe gate), bf16 tensors and
/// K = V in {32, 64, 96, 128}. Recurrent calls compute in f32 for every type; K = V = 128 with
/// aligned rows runs at the speed of memory.
///
/// On Hopper (compute capability 9.0) the chunked forward of bf16 tensors with K = V in {64, 128},
/// a raw gate (standard, or with a lower bound of at least -5) and the norm inside is one fused
/// kernel, and the backward two (docs/ops/chunk-hopper.md); `chunk_forward_path` and
/// `chunk_backward_path` say which kernels a call takes and why.
#pragma once

#include <string>

#include "kda/ops/chunk.h"

namespace kda::cuda {

/// Makes Backend::kCuda available to the functions of this library. Idempotent, thread safe.
void register_backend();

/// Which kernels `chunk_forward` would run for this call on the current device, and what speaks
/// against the others, in one line. Throws what `chunk_forward` would for a faulty call.
std::string chunk_forward_path(const ChunkForwardParams& params);
/// The same for `chunk_backward`.
std::string chunk_backward_path(const ChunkBackwardParams& params);

/// Switches the kernels made for Hopper on (as from the start) or off for the whole process, to
/// compare them with the portable ones. Workspace sizes depend on it.
void set_hopper_enabled(bool enabled);

/// Whether those kernels may cut long sequences of few heads (at least 4,096 tokens, at most 16
/// value heads, or 32 where K = V = 64) into segments that run side by side: several times faster
/// where a scan leaves most multiprocessors idle, slower where a call has three or more such
/// sequences and so fills the GPU by itself. Exact up to rounding. How many segments depends on HV
/// and K alone, so the bits of a sequence do not depend on how many others are in the call; they do
/// depend on this switch. On from the start: who has many long rows of few heads is faster without.
/// Workspace sizes depend on it.
void set_hopper_segments(bool enabled);

/// Whether those kernels take calls with a standard gate (raw, without a lower bound), on from the
/// start; to compare them with the portable ones. Workspace sizes depend on it.
void set_hopper_standard_gate(bool enabled);

}  // namespace kda::cuda
