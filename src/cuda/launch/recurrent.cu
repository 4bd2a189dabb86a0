#include "cuda/kernels/recurrent.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_recurrent(const RecurrentArgs& args, void* stream) {
  const std::int64_t blocks =
      args.shape.N * args.shape.HV * ((args.shape.V + kRecurrentCols - 1) / kRecurrentCols);
  if (args.shape.K <= 32) {
    launch("recurrent", recurrent_kernel<32>, blocks, 32, 0, stream, args);
  } else if (args.shape.K <= 64) {
    launch("recurrent", recurrent_kernel<64>, blocks, 64, 0, stream, args);
  } else if (args.shape.K <= 128) {
    launch("recurrent", recurrent_kernel<128>, blocks, 128, 0, stream, args);
  } else {
    launch("recurrent", recurrent_kernel<256>, blocks, 256, 0, stream, args);
  }
}

}  // namespace kda::cuda
