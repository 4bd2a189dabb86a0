#include "cuda/kernels/local_bounded_mma.cuh"
#include "cuda/kernels/local_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

template <int kK, int kV>
void run(const ChunkArgs& args, void* stream) {
  const Inputs& in = args.in;
  const auto plain_or_absent = [](const Tensor& t) { return t.data == nullptr || is_plain(t); };
  const bool plain = args.shape.K == kK && args.shape.V == kV && is_plain(in.q) && is_plain(in.k) &&
                     is_plain(in.v) && is_plain(in.g) && is_plain(args.h) &&
                     plain_or_absent(args.d_o) && plain_or_absent(args.dq) &&
                     plain_or_absent(args.dk) && plain_or_absent(args.dg);
  if constexpr (kK == kV) {
    constexpr std::size_t kSmem = sizeof(BoundedSmem<kK>);
    const bool fits = kSmem <= static_cast<std::size_t>(
                                   device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    if (plain && fits && in.gate.kind == GateKind::kBounded &&
        in.gate.lower_bound >= kBoundedLimit) {
      const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
      const std::int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
      launch("local_bounded_mma", local_bounded_mma_kernel<kK>, tiles < sms ? tiles : sms,
             kBoundedThreads, kSmem, stream, args);
      return;
    }
  }
  launch("local_mma", plain ? local_mma_kernel<kK, kV, true> : local_mma_kernel<kK, kV, false>,
         args.map.num_chunks * args.shape.HV, kLocalThreads, sizeof(LocalSmem<kK, kV>), stream,
         args);
}

}  // namespace

void launch_local_mma(const ChunkArgs& args, void* stream) {
  if (args.shape.K <= 64) {
    args.shape.V <= 64 ? run<64, 64>(args, stream) : run<64, 128>(args, stream);
  } else {
    args.shape.V <= 64 ? run<128, 64>(args, stream) : run<128, 128>(args, stream);
  }
}

}  // namespace kda::cuda
