#include "cuda/kernels/scan_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"
#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

int num_sms() {
  int device = 0;
  int count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  return count;
}

template <int kK, int kWarps>
void run(const ChunkArgs& args, bool reverse, bool output, void* stream) {
  const std::int64_t blocks =
      args.shape.N * args.shape.HV * ((args.shape.V + 16 * kWarps - 1) / (16 * kWarps));
  constexpr std::size_t kSmem = sizeof(ScanSmem<kK, kWarps>);
  if (reverse) {
    launch("scan_rev_mma", scan_rev_mma_kernel<kK, kWarps>, blocks, 32 * kWarps, kSmem, stream,
           args);
  } else {
    launch("scan_fwd_mma",
           output ? scan_fwd_mma_kernel<kK, kWarps, true> : scan_fwd_mma_kernel<kK, kWarps, false>,
           blocks, 32 * kWarps, kSmem, stream, args);
  }
}

template <int kK>
void choose(const ChunkArgs& args, bool reverse, bool output, void* stream) {
  switch (scan_warps(args.shape.N * args.shape.HV, args.shape.V, num_sms())) {
    case 8:
      return run<kK, 8>(args, reverse, output, stream);
    case 4:
      return run<kK, 4>(args, reverse, output, stream);
    default:
      return run<kK, 2>(args, reverse, output, stream);
  }
}

void dispatch(const ChunkArgs& args, bool reverse, bool output, void* stream) {
  if (args.shape.K <= 64) {
    choose<64>(args, reverse, output, stream);
  } else {
    choose<128>(args, reverse, output, stream);
  }
}

}  // namespace

void launch_scan_fwd_mma(const ChunkArgs& args, bool output, void* stream) {
  dispatch(args, /*reverse=*/false, output, stream);
}

void launch_scan_rev_mma(const ChunkArgs& args, void* stream) {
  dispatch(args, /*reverse=*/true, /*output=*/true, stream);
}

}  // namespace kda::cuda
