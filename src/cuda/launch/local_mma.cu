#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"
#include "cuda/tiling/instances.h"

namespace kda::cuda {
namespace {

bool plain_or_absent(const Tensor& t) { return t.data == nullptr || is_plain(t); }

bool plain(const ChunkArgs& args) {
  const Inputs& in = args.in;
  return is_plain(in.q) && is_plain(in.k) && is_plain(in.v) && is_plain(in.g) && is_plain(args.h) &&
         plain_or_absent(args.d_o) && plain_or_absent(args.dq) && plain_or_absent(args.dk) &&
         plain_or_absent(args.dg);
}

template <int kK, int kV>
void run(const ChunkArgs& args, void* stream) {
  if (args.shape.K != kK || args.shape.V != kV || !plain(args)) {
    return run_local_mma<kK, kV, false>(args, stream);
  }
  if constexpr (kK == kV) {
    const Gate& gate = args.in.gate;
    if (gate.kind == GateKind::kBounded && gate.lower_bound >= kBoundedLimit &&
        run_local_bounded_mma<kK>(args, stream)) {
      return;
    }
  }
  run_local_mma<kK, kV, true>(args, stream);
}

}  // namespace

void launch_local_mma(const ChunkArgs& args, void* stream) {
  const MmaHeads heads = mma_heads(args.shape.K, args.shape.V);
#define KDA_MMA_LOCAL(kK, kV) \
  if (heads == MmaHeads{kK, kV}) return run<kK, kV>(args, stream);
#include "cuda/instances.def"
}

}  // namespace kda::cuda
