// What the Hopper backward leaves to the kernels for any GPU (K = V = 64 or 128, plain tensors).
#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_retries(const ChunkArgs& args, void* stream) {
  args.shape.K == 64 ? run_retries<64>(args, stream) : run_retries<128>(args, stream);
}

}  // namespace kda::cuda
