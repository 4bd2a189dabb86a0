#include "cuda/kernels/recurrent.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

template <int kK, int kCols>
void run(const RecurrentArgs& args, void* stream) {
  const std::int64_t blocks = args.shape.N * args.shape.HV * ((args.shape.V + kCols - 1) / kCols);
  launch("recurrent", recurrent_kernel<kK, kCols>, blocks, kRecurrentThreads<kK, kCols>, 0, stream,
         args);
}

template <int kK>
void choose(const RecurrentArgs& args, void* stream) {
  args.shape.V <= 32 ? run<kK, 32>(args, stream) : run<kK, 64>(args, stream);
}

}  // namespace

void launch_recurrent(const RecurrentArgs& args, void* stream) {
  if (args.shape.K <= 32) {
    choose<32>(args, stream);
  } else if (args.shape.K <= 64) {
    choose<64>(args, stream);
  } else if (args.shape.K <= 128) {
    choose<128>(args, stream);
  } else {
    choose<256>(args, stream);
  }
}

}  // namespace kda::cuda
