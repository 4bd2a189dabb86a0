#include "cuda/kernels/decode.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

// Absent, or rows that move four columns at a time.
bool wide_or_absent(const Tensor& state) {
  return state.data == nullptr ||
         (state.vector && (state.elem == Elem::kF32 || state.elem == Elem::kBF16));
}

template <typename State>
void run_decode(const RecurrentArgs& args, void* stream) {
  const std::int64_t states = args.shape.N * args.shape.HV;
  const std::int64_t blocks =
      kDecodeBlocks * static_cast<std::int64_t>(device_attribute(cudaDevAttrMultiProcessorCount));
  launch("decode",
         args.norm.weight != nullptr ? decode_kernel<State, true> : decode_kernel<State, false>,
         states < blocks ? states : blocks, kDecodeThreads, sizeof(DecodeSmem<State>), stream,
         args);
}

}  // namespace

bool wide_states(const RecurrentArgs& args) {
  return wide_or_absent(args.in.initial_state) && wide_or_absent(args.final_state) &&
         wide_or_absent(args.pool) && args.shape.V % 4 == 0;
}

bool decode_serves(const RecurrentArgs& args) {
  const Inputs& in = args.in;
  return args.shape.K == kDecodeHead && args.shape.V == kDecodeHead && in.q.vector && in.k.vector &&
         in.g.vector && in.v.vector && args.beta_v.data == nullptr && wide_states(args);
}

void launch_decode(const RecurrentArgs& args, void* stream) {
  const bool bf16 = args.pool.data != nullptr && args.pool.elem == Elem::kBF16;
  bf16 ? run_decode<std::uint16_t>(args, stream) : run_decode<float>(args, stream);
}

}  // namespace kda::cuda
