// Scans of bounded gates, and what all scans share.
#include "cuda/hopper/scan_run.cuh"
#include "cuda/hopper/segments.cuh"

namespace kda::cuda::hopper {

void launch_segments(const ChunkArgs& args, void* stream) {
  launch("hopper segments", segments_kernel,
         args.segments.cuts * args.shape.HV * SegmentSmem64::kLinks, SegmentSmem64::kThreads,
         sizeof(SegmentSmem64), stream, args);
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
