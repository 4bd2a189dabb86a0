#include <algorithm>
#include <string>

#include "cuda/hopper/scan.cuh"
#include "cuda/hopper/scan.h"
#include "cuda/hopper/segments.cuh"
#include "cuda/hopper/tiling.h"
#include "cuda/launch/check.cuh"

namespace kda::cuda::hopper {
namespace {

// What a launch is for: forward, forward that keeps states, reverse scan.
enum class Kind { kPlain, kStates, kReverse };
template <Kind kKind, int kK, int kValueGroups, int kPrepGroups, int kSlots, int kUpdate, int kPrep>
using Make = Config<kK, kValueGroups, kPrepGroups, kSlots, kUpdate, kPrep, 32,
                    kKind == Kind::kStates, kKind == Kind::kReverse>;

// Warpgroups (update, prep), slots, registers (update, prep).
template <Kind kKind>
struct Whole128 : Make<kKind, 128, 2, 2, 10, 152, 72> {};
template <>
struct Whole128<Kind::kPlain> : Make<Kind::kPlain, 128, 2, 2, 12, 152, 72> {};
template <>
struct Whole128<Kind::kReverse> : Make<Kind::kReverse, 128, 2, 2, 10, 160, 64> {};
template <Kind kKind>
struct Half128 : Make<kKind, 128, 1, 2, kKind == Kind::kPlain ? 13 : 12, 208, 120> {};
template <Kind kKind>
struct Whole64 : Make<kKind, 64, 1, 2, 16, 160, 120> {};

template <typename C>
void run(const ChunkArgs& args, std::int64_t heads, int num_sms, void* stream) {
  const std::int64_t items = heads * (args.shape.V / (64 * C::kValueGroups));
  const std::int64_t most = 2147483647 - 2 * std::int64_t{num_sms};  // numbers of items: 32 bits
  if (items > most) {
    throw Error(ErrorCode::kUnsupported, "hopper scan: " + std::to_string(items) +
                                             " heads of sequences, expected at most " +
                                             std::to_string(most));
  }
  auto* kernel = scan_kernel<C, true>;  // select.cpp lets no call without the norm through
  launch(C::kReverse ? "hopper reverse scan" : "hopper forward", kernel,
         std::min<std::int64_t>(items, num_sms), C::kThreads, C::kSmemBytes, stream, args,
         static_cast<int>(items));
}

// One pass over `heads` pieces: value heads of sequences or of segments.
template <Kind kKind>
void run_pass(const ChunkArgs& args, std::int64_t heads, int num_sms, void* stream) {
  if (args.shape.K == 64) {
    run<Whole64<kKind>>(args, heads, num_sms, stream);
  } else if (whole_heads(heads, num_sms)) {
    run<Whole128<kKind>>(args, heads, num_sms, stream);
  } else {
    run<Half128<kKind>>(args, heads, num_sms, stream);
  }
}

template <Kind kKind>
void run_scan(const ChunkArgs& args, void* stream) {
  const int num_sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const Segments& segments = args.segments;
  const std::int64_t HV = args.shape.HV;
  if (segments.most == 1) {
    run_pass<kKind>(args, args.shape.N * HV, num_sms, stream);
    return;
  }
  ChunkArgs pass = args;
  pass.segments.pass = 1;
  const std::int64_t more = first_pass_pieces(segments.most) - 1;
  run_pass<kKind>(pass, (args.shape.N + segments.cuts * more) * HV, num_sms, stream);
  launch("hopper segments", segments_kernel,
         segments.cuts * HV * (SegmentSmem::kD / SegmentSmem::kColumns), SegmentSmem::kThreads,
         sizeof(SegmentSmem), stream, args);
  pass.segments.pass = 2;
  run_pass<kKind>(pass, segments.cuts * (segments.most - 1) * HV, num_sms, stream);
}

}  // namespace

void launch_forward(const ChunkArgs& args, void* stream) {
  if (args.h.data != nullptr) {
    run_scan<Kind::kStates>(args, stream);
  } else {
    run_scan<Kind::kPlain>(args, stream);
  }
}

void launch_reverse(const ChunkArgs& args, void* stream) { run_scan<Kind::kReverse>(args, stream); }

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
