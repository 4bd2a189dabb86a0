#include "cuda/kernels/local_simt.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {
std::int64_t slices(int dim, int width) { return (dim + width - 1) / width; }
}  // namespace

void launch_prep_simt(const ChunkArgs& args, void* stream) {
  launch("prep_simt", prep_simt_kernel, args.map.num_chunks * args.shape.HV, kSimtThreads,
         sizeof(SimtPrepSmem), stream, args);
}

void launch_scan_fwd_simt(const ChunkArgs& args, bool output, void* stream) {
  launch("scan_fwd_simt", output ? scan_fwd_simt_kernel<true> : scan_fwd_simt_kernel<false>,
         args.shape.N * args.shape.HV * slices(args.shape.V, kScanCols), kSimtThreads,
         sizeof(SimtScanSmem), stream, args);
}

void launch_scan_rev_simt(const ChunkArgs& args, void* stream) {
  launch("scan_rev_simt", scan_rev_simt_kernel,
         args.shape.N * args.shape.HV * slices(args.shape.V, kScanCols), kSimtThreads,
         sizeof(SimtScanSmem), stream, args);
}

void launch_local_simt(const ChunkArgs& args, void* stream) {
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  launch("wy_simt", wy_simt_kernel, tiles * slices(args.shape.V, kScanCols), kSimtThreads,
         sizeof(SimtWySmem), stream, args);
  launch("output_bwd_simt", output_bwd_simt_kernel, tiles, kSimtThreads, sizeof(SimtPairSmem),
         stream, args);
  launch("intra_bwd_simt", intra_bwd_simt_kernel, tiles * slices(args.shape.K, kSimtTile),
         kSimtThreads, sizeof(SimtIntraSmem), stream, args);
}

}  // namespace kda::cuda
