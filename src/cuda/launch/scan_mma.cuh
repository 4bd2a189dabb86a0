// run_scan_mma, for the units of inst/.
#pragma once

#include "cuda/kernels/scan_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kK, int kWarps>
void run_scan_mma(const ChunkArgs& args, Scan scan, void* stream) {
  const std::int64_t blocks =
      args.shape.N * args.shape.HV * ((args.shape.V + 16 * kWarps - 1) / (16 * kWarps));
  const auto go = [&](const char* name, auto* kernel) {
    launch(name, kernel, blocks, 32 * kWarps, sizeof(ScanSmem<kK, kWarps>), stream, args);
  };
  switch (scan) {
    case Scan::kForward:
      return go("scan_fwd_mma", scan_fwd_mma_kernel<kK, kWarps, true>);
    case Scan::kStates:
      return go("scan_fwd_mma", scan_fwd_mma_kernel<kK, kWarps, false>);
    case Scan::kReverse:
      return go("scan_rev_mma", scan_rev_mma_kernel<kK, kWarps>);
  }
}

}  // namespace kda::cuda
