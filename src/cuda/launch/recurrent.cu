#include "cuda/kernels/recurrent.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {
namespace {

constexpr int kCols = 32;

template <int kK>
void run(const RecurrentArgs& args, void* stream) {
  const std::int64_t blocks = args.shape.N * args.shape.HV * ((args.shape.V + kCols - 1) / kCols);
  launch("recurrent", recurrent_kernel<kK, kCols>, blocks, kRecurrentThreads<kK, kCols>, 0, stream,
         args);
}

}  // namespace

void launch_recurrent(const RecurrentArgs& args, void* stream) {
  if (args.shape.K <= 32) {
    run<32>(args, stream);
  } else if (args.shape.K <= 64) {
    run<64>(args, stream);
  } else if (args.shape.K <= 128) {
    run<128>(args, stream);
  } else {
    run<256>(args, stream);
  }
}

}  // namespace kda::cuda
