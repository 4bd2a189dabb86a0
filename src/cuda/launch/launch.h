// Launch functions of the stages, for host code without CUDA headers: a stream is a void*.
#pragma once

#include <cstdint>

#include "cuda/args.h"
#include "kda/tensor_view.h"

namespace kda::cuda {

// What the current device offers a kernel; major == 0: there is none, for the reason `error`.
struct DeviceLimits {
  int major = 0;  // compute capability
  int minor = 0;
  int shared_bytes = 0;  // per block
  const char* error = "";
};
DeviceLimits device_limits();

// Tables of a packed call. `cu` is the caller's cu_seqlens in device memory, or null data: then
// `host_offsets` (N + 1) are sent along.
struct PackedOffsets {
  Tensor device;
  const std::int64_t* host = nullptr;
};
void launch_offsets(const PackedOffsets& from, std::int64_t N, std::int64_t T,
                    std::int64_t* offsets, void* stream);
void launch_packed_tables(const PackedOffsets& from, std::int64_t N, const ChunkMap& map,
                          const Segments& segments, void* stream);

// f32 stages, any K and V up to 256.
void launch_prep_simt(const ChunkArgs& args, void* stream);
void launch_scan_fwd_simt(const ChunkArgs& args, bool output, void* stream);
void launch_scan_rev_simt(const ChunkArgs& args, void* stream);
void launch_local_simt(const ChunkArgs& args, void* stream);

// Tensor-core stages; launch_local_mma for K and V up to 128, the wide one for any.
void launch_prep_mma(const ChunkArgs& args, void* stream);
void launch_scan_fwd_mma(const ChunkArgs& args, bool output, void* stream);
void launch_scan_rev_mma(const ChunkArgs& args, void* stream);
void launch_local_mma(const ChunkArgs& args, void* stream);
void launch_local_wide_mma(const ChunkArgs& args, void* stream);
// Prep and local stage of the chunks of args.retry; K = V = 64 or 128, bf16 in 16-byte rows.
void launch_retries(const ChunkArgs& args, void* stream);

// dv and dbeta; dq and dk folded over value heads; sums of parameter gradients.
void launch_value_bwd(const ChunkArgs& args, void* stream);
void launch_finish(const ChunkArgs& args, void* stream);
void launch_sum_blocks(const float* part, float* out, std::int64_t blocks, int HV, int K,
                       const std::int32_t* exists, void* stream);
void launch_sum_scalars(const float* part, float* out, std::int64_t blocks, int HV, int parts,
                        const std::int32_t* exists, void* stream);

// Rows of every state move in vectors.
bool wide_states(const RecurrentArgs& args);
void launch_recurrent(const RecurrentArgs& args, void* stream);
// The fast case, K = V = 128 and aligned rows.
bool decode_serves(const RecurrentArgs& args);
void launch_decode(const RecurrentArgs& args, void* stream);
// args.o = norm of the f32 rows [B,T,HV,V] at `from`: for calls that launch_recurrent serves.
void launch_output_norm(const RecurrentArgs& args, const float* from, void* stream);

}  // namespace kda::cuda
