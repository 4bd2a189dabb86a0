#include "cuda/kernels/local_wide_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

bool plain_or_absent(const Tensor& t) { return t.data == nullptr || is_plain(t); }

bool plain(const ChunkArgs& args) {
  const Inputs& in = args.in;
  return args.shape.K % kWideSlice == 0 && args.shape.V % kWideSlice == 0 && is_plain(in.q) &&
         is_plain(in.k) && is_plain(in.v) && is_plain(in.g) && is_plain(args.h) &&
         plain_or_absent(args.d_o) && plain_or_absent(args.dg);
}

template <bool kPlain>
void run(const ChunkArgs& args, void* stream) {
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  const int slices = (args.shape.K + kWideSlice - 1) / kWideSlice;
  launch("local_pairs_mma", local_pairs_mma_kernel<kPlain>, tiles, kWideThreads, sizeof(PairsSmem),
         stream, args);
  launch("local_wide_mma", local_wide_mma_kernel<kPlain>, tiles * slices, kWideThreads,
         sizeof(LocalSmem<kWideSlice, kWideSlice>), stream, args);
}

}  // namespace

void launch_local_wide_mma(const ChunkArgs& args, void* stream) {
  plain(args) ? run<true>(args, stream) : run<false>(args, stream);
}

}  // namespace kda::cuda
