#include "cuda/kernels/decode.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

bool decode_serves(const RecurrentArgs& args) {
  const Inputs& in = args.in;
  return args.shape.K == kDecodeHead && args.shape.V == kDecodeHead && in.q.vector && in.k.vector &&
         in.g.vector && in.v.vector && args.beta_v.data == nullptr;
}

template <typename State>
void run_decode(const RecurrentArgs& args, void* stream) {
  const std::int64_t states = args.shape.N * args.shape.HV;
  const std::int64_t blocks =
      kDecodeBlocks * static_cast<std::int64_t>(device_attribute(cudaDevAttrMultiProcessorCount));
  launch("decode", decode_kernel<State>, states < blocks ? states : blocks, kDecodeThreads,
         sizeof(DecodeSmem<State>), stream, args);
}

}  // namespace

bool launch_decode(const RecurrentArgs& args, void* stream) {
  if (!decode_serves(args)) return false;
  const bool bf16 = args.pool.data != nullptr && args.pool.elem == Elem::kBF16;
  bf16 ? run_decode<std::uint16_t>(args, stream) : run_decode<float>(args, stream);
  return true;
}

}  // namespace kda::cuda
