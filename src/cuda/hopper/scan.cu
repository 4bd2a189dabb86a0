#include <algorithm>

#include "cuda/hopper/scan.cuh"
#include "cuda/hopper/scan.h"
#include "cuda/hopper/segments.cuh"
#include "cuda/hopper/tiling.h"
#include "cuda/launch/check.cuh"

namespace kda::cuda::hopper {
namespace {

// What a launch is for: forward, forward that keeps states, reverse scan, and what segments make of
// a state in either direction.
enum class Kind { kPlain, kStates, kReverse, kMaps, kReverseMaps };
template <Kind kKind, int kK, int kValueGroups, int kPrepGroups, int kSlots, int kUpdate, int kPrep>
using Make = Config<kK, kValueGroups, kPrepGroups, kSlots, kUpdate, kPrep, 32,
                    kKind == Kind::kStates, kKind == Kind::kReverse || kKind == Kind::kReverseMaps,
                    kKind == Kind::kMaps || kKind == Kind::kReverseMaps>;

// Warpgroups (update, prep), slots, registers (update, prep).
template <Kind kKind>
struct Whole128 : Make<kKind, 128, 2, 2, 10, 152, 72> {};
template <>
struct Whole128<Kind::kPlain> : Make<Kind::kPlain, 128, 2, 2, 12, 152, 72> {};
template <>
struct Whole128<Kind::kReverse> : Make<Kind::kReverse, 128, 2, 2, 10, 160, 64> {};
template <>
struct Whole128<Kind::kMaps> : Make<Kind::kMaps, 128, 2, 2, 12, 152, 72> {};
template <>
struct Whole128<Kind::kReverseMaps> : Make<Kind::kReverseMaps, 128, 2, 2, 12, 160, 64> {};
template <Kind kKind>
struct Half128 : Make<kKind, 128, 1, 2, kKind == Kind::kPlain ? 13 : 12, 208, 120> {};
template <Kind kKind>
struct Whole64 : Make<kKind, 64, 1, 2, 16, 160, 120> {};

template <typename C>
void run(const ChunkArgs& args, int num_sms, void* stream) {
  const std::int64_t segments = C::kMaps ? 2 * (args.segments - 1) : args.segments;
  const std::int64_t items =
      args.shape.N * segments * args.shape.HV * (args.shape.V / (64 * C::kValueGroups));
  auto* kernel = scan_kernel<C, true>;  // select.cpp lets no call without the norm through
  launch(C::kReverse ? "hopper reverse scan" : "hopper forward", kernel,
         std::min<std::int64_t>(items, num_sms), C::kThreads, C::kSmemBytes, stream, args, items);
}

template <Kind kKind>
void choose(const ChunkArgs& args, void* stream) {
  int device = 0;
  int num_sms = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  if (args.segments > 1) {
    constexpr bool kReverse = kKind == Kind::kReverse;
    run<Whole128<kReverse ? Kind::kReverseMaps : Kind::kMaps>>(args, num_sms, stream);
    launch("hopper segments", segments_kernel<kReverse>, args.shape.N * args.shape.HV * 16, 128,
           sizeof(SegmentSmem), stream, args);
  }
  if (args.shape.K == 64) {
    run<Whole64<kKind>>(args, num_sms, stream);
  } else if (whole_heads(args.shape.N * args.segments * args.shape.HV, num_sms)) {
    run<Whole128<kKind>>(args, num_sms, stream);
  } else {
    run<Half128<kKind>>(args, num_sms, stream);
  }
}

}  // namespace

void launch_forward(const ChunkArgs& args, void* stream) {
  if (args.h.data != nullptr) {
    choose<Kind::kStates>(args, stream);
  } else {
    choose<Kind::kPlain>(args, stream);
  }
}

void launch_reverse(const ChunkArgs& args, void* stream) { choose<Kind::kReverse>(args, stream); }

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
