#include "cuda/kernels/recurrent.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

// Absent, or rows that move four columns at a time.
bool wide_or_absent(const Tensor& state) {
  return state.data == nullptr ||
         (state.vector && (state.elem == Elem::kF32 || state.elem == Elem::kBF16));
}

template <int kK, int kCols>
void run(const RecurrentArgs& args, bool wide, void* stream) {
  const std::int64_t blocks = args.shape.N * args.shape.HV * ((args.shape.V + kCols - 1) / kCols);
  launch("recurrent", wide ? recurrent_kernel<kK, kCols, true> : recurrent_kernel<kK, kCols, false>,
         blocks, kRecurrentThreads<kK, kCols>, 0, stream, args);
}

template <int kK>
void choose(const RecurrentArgs& args, bool wide, void* stream) {
  args.shape.V <= 32 ? run<kK, 32>(args, wide, stream) : run<kK, 64>(args, wide, stream);
}

}  // namespace

void launch_recurrent(const RecurrentArgs& args, void* stream) {
  const bool wide = wide_or_absent(args.in.initial_state) && wide_or_absent(args.final_state) &&
                    wide_or_absent(args.pool) && args.shape.V % 4 == 0;
  if (wide && launch_decode(args, stream)) return;
  if (args.shape.K <= 32) {
    choose<32>(args, wide, stream);
  } else if (args.shape.K <= 64) {
    choose<64>(args, wide, stream);
  } else if (args.shape.K <= 128) {
    choose<128>(args, wide, stream);
  } else {
    choose<256>(args, wide, stream);
  }
}

}  // namespace kda::cuda
