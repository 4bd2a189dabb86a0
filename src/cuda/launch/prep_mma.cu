#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_prep_mma(const ChunkArgs& args, void* stream) {
  args.shape.K <= 64 ? run_prep_mma<64>(args, stream) : run_prep_mma<128>(args, stream);
}

}  // namespace kda::cuda
