// Scans of bounded gates, and what all scans share.
#include "cuda/hopper/scan_run.cuh"
#include "cuda/hopper/segments.cuh"

namespace kda::cuda::hopper {

namespace {

template <int kD>
void launch_segments_of(const ChunkArgs& args, void* stream) {
  using Smem = SegmentSmem<kD>;
  launch("hopper segments", segments_kernel<kD>, args.segments.cuts * args.shape.HV * Smem::kLinks,
         Smem::kThreads, sizeof(Smem), stream, args);
}

}  // namespace

void launch_segments(const ChunkArgs& args, void* stream) {
  if (args.shape.K == 64) {
    launch_segments_of<64>(args, stream);
  } else {
    launch_segments_of<128>(args, stream);
  }
}

void launch_forward(const ChunkArgs& args, void* stream) {
  if (args.in.gate.kind == GateKind::kStandard) {
    launch_standard_forward(args, stream);
  } else if (args.h.data != nullptr) {
    run_scan<Kind::kStates, false>(args, stream);
  } else {
    run_scan<Kind::kPlain, false>(args, stream);
  }
}

void launch_reverse(const ChunkArgs& args, void* stream) {
  if (args.in.gate.kind == GateKind::kStandard) {
    launch_standard_reverse(args, stream);
  } else {
    run_scan<Kind::kReverse, false>(args, stream);
  }
}

DeviceSupport device_support() {
  DeviceSupport support;
  support.built = true;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();  // no device: not an error of the call that asks
    return support;
  }
  cudaDeviceGetAttribute(&support.major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&support.minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceGetAttribute(&support.num_sms, cudaDevAttrMultiProcessorCount, device);
  return support;
}

}  // namespace kda::cuda::hopper
