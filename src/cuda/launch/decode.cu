#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/decode_one.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"
#include "cuda/tiling/decode.h"

namespace kda::cuda {
namespace {

// Absent, or rows that move four columns at a time.
bool wide_or_absent(const Tensor& state) {
  return state.data == nullptr ||
         (state.vector && (state.elem == Elem::kF32 || state.elem == Elem::kBF16));
}

template <typename State>
void run_decode(const RecurrentArgs& args, std::int64_t num_sms, void* stream) {
  const std::int64_t states = args.shape.N * args.shape.HV;
  const std::int64_t blocks = kDecodeBlocks * num_sms;
  launch("decode",
         args.norm.weight != nullptr ? decode_kernel<State, true> : decode_kernel<State, false>,
         states < blocks ? states : blocks, kDecodeThreads, sizeof(DecodeSmem<State>), stream,
         args);
}

template <typename State, bool kNorm>
void run_decode_one(const RecurrentArgs& args, void* stream) {
  const dim3 grid(grid_of(static_cast<std::int64_t>(args.shape.HV) * kOneSlices<kNorm>, "decode"),
                  grid_of(args.shape.N, "decode"));
  if (grid.x == 0 || grid.y == 0) return;
  decode_one_kernel<State, kNorm>
      <<<grid, kOneThreads<kNorm>, 0, static_cast<cudaStream_t>(stream)>>>(args);
  check_cuda(cudaGetLastError(), "decode");
}

template <typename State>
void choose(const RecurrentArgs& args, void* stream) {
  const bool norm = args.norm.weight != nullptr;
  const DecodeCall call{.sequences = args.shape.N,
                        .value_heads = args.shape.HV,
                        .one_token = args.offsets == nullptr && args.shape.T == 1,
                        .bf16_states = sizeof(State) == 2,
                        .norm = norm};
  const std::int64_t num_sms = device_attribute(cudaDevAttrMultiProcessorCount);
  if (!decodes_at_once(call, num_sms)) return run_decode<State>(args, num_sms, stream);
  norm ? run_decode_one<State, true>(args, stream) : run_decode_one<State, false>(args, stream);
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
  bf16 ? choose<std::uint16_t>(args, stream) : choose<float>(args, stream);
}

}  // namespace kda::cuda
