#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"
#include "cuda/tiling/instances.h"
#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

void dispatch(const ChunkArgs& args, Scan scan, void* stream) {
  const std::int64_t K = mma_heads(args.shape.K, args.shape.V).K;
  const int warps = scan_warps(args.shape.N * args.shape.HV, args.shape.V, K,
                               device_attribute(cudaDevAttrMultiProcessorCount));
#define KDA_MMA_SCAN(kK, kWarps) \
  if (K == kK && warps == kWarps) return run_scan_mma<kK, kWarps>(args, scan, stream);
#include "cuda/instances.def"
}

}  // namespace

void launch_scan_fwd_mma(const ChunkArgs& args, bool output, void* stream) {
  dispatch(args, output ? Scan::kForward : Scan::kStates, stream);
}

void launch_scan_rev_mma(const ChunkArgs& args, void* stream) {
  dispatch(args, Scan::kReverse, stream);
}

}  // namespace kda::cuda
