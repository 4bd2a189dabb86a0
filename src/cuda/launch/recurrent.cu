#include "cuda/kernels/output_norm.cuh"
#include "cuda/kernels/recurrent.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

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
  const bool wide = wide_states(args);
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

void launch_output_norm(const RecurrentArgs& args, const float* from, void* stream) {
  const std::int64_t rows = args.shape.B * args.shape.T * args.shape.HV;
  launch("output_norm", output_norm_kernel, (rows + 7) / 8, 256, 0, stream, args, from);
}

}  // namespace kda::cuda
