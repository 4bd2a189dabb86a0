#include "cuda/kernels/finish.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_value_bwd(const ChunkArgs& args, void* stream) {
  launch("value_bwd", value_bwd_kernel, args.map.num_chunks * args.shape.HV, 256, 0, stream, args);
}

void launch_sum_blocks(const float* part, float* out, std::int64_t blocks, int HV, int K,
                       const std::int32_t* exists, void* stream) {
  launch("sum_blocks", sum_blocks_kernel, static_cast<std::int64_t>(HV) * ((K + 31) / 32), 1024, 0,
         stream, part, out, blocks, HV, K, exists);
}

void launch_sum_scalars(const float* part, float* out, std::int64_t blocks, int HV, int parts,
                        const std::int32_t* exists, void* stream) {
  launch("sum_scalars", sum_scalars_kernel, HV, 256, 0, stream, part, out, blocks, HV, parts,
         exists);
}

void launch_finish(const ChunkArgs& args, void* stream) {
  const Shape& shape = args.shape;
  const int bias_blocks = args.d_dt_bias == nullptr ? 0 : shape.HV * ((shape.K + 31) / 32);
  const int scalar_blocks = args.da_log == nullptr ? 0 : shape.HV;
  const std::int64_t rows = args.dq_part == nullptr ? 0 : shape.B * shape.T * shape.H;
  launch("finish", finish_kernel, bias_blocks + scalar_blocks + (rows + 31) / 32, 1024, 0, stream,
         args, bias_blocks, scalar_blocks);
}

}  // namespace kda::cuda
