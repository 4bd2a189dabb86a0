// The chunk-local backward of standard gates, a unit of its own: they compile side by side.
#include "cuda/hopper/local_run.cuh"

namespace kda::cuda::hopper {

void launch_standard_local(const ChunkArgs& args, void* stream) { run_local<true>(args, stream); }

}  // namespace kda::cuda::hopper
