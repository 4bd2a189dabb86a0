// The chunk-local backward of bounded gates.
#include "cuda/hopper/local_run.cuh"

namespace kda::cuda::hopper {

void launch_local(const ChunkArgs& args, void* stream) {
  if (args.in.gate.kind == GateKind::kStandard) {
    launch_standard_local(args, stream);
  } else {
    run_local<false>(args, stream);
  }
}

}  // namespace kda::cuda::hopper
