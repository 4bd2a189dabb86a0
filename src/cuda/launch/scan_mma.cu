#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"
#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

template <int kK>
void choose(const ChunkArgs& args, Scan scan, void* stream) {
  switch (scan_warps(args.shape.N * args.shape.HV, args.shape.V,
                     device_attribute(cudaDevAttrMultiProcessorCount))) {
    case 8:
      return run_scan_mma<kK, 8>(args, scan, stream);
    case 4:
      return run_scan_mma<kK, 4>(args, scan, stream);
    default:
      return run_scan_mma<kK, 2>(args, scan, stream);
  }
}

void dispatch(const ChunkArgs& args, Scan scan, void* stream) {
  args.shape.K <= 64 ? choose<64>(args, scan, stream) : choose<128>(args, scan, stream);
}

}  // namespace

void launch_scan_fwd_mma(const ChunkArgs& args, bool output, void* stream) {
  dispatch(args, output ? Scan::kForward : Scan::kStates, stream);
}

void launch_scan_rev_mma(const ChunkArgs& args, void* stream) {
  dispatch(args, Scan::kReverse, stream);
}

}  // namespace kda::cuda
