#include "cuda/kernels/prep_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

template <int kK>
void run(const ChunkArgs& args, void* stream) {
  const Inputs& in = args.in;
  const bool plain = args.shape.K == kK && is_plain(in.q) && is_plain(in.k) && is_plain(in.g);
  launch("prep_mma", plain ? prep_mma_kernel<kK, true> : prep_mma_kernel<kK, false>,
         args.map.num_chunks * args.shape.HV, kPrepThreads,
         plain ? sizeof(PlainPrepSmem<kK>) : sizeof(PrepSmem), stream, args);
}

}  // namespace

void launch_prep_mma(const ChunkArgs& args, void* stream) {
  if (args.shape.K <= 64) {
    run<64>(args, stream);
  } else {
    run<128>(args, stream);
  }
}

}  // namespace kda::cuda
