// Scans of standard gates, a unit of their own: they compile side by side.
#include "cuda/hopper/scan_run.cuh"

namespace kda::cuda::hopper {

void launch_standard_forward(const ChunkArgs& args, void* stream) {
  if (args.h.data != nullptr) {
    run_scan<Kind::kStates, true>(args, stream);
  } else {
    run_scan<Kind::kPlain, true>(args, stream);
  }
}

void launch_standard_reverse(const ChunkArgs& args, void* stream) {
  run_scan<Kind::kReverse, true>(args, stream);
}

}  // namespace kda::cuda::hopper
