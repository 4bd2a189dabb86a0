#include "cuda/launch/instances.h"
#include "cuda/launch/launch.h"
#include "cuda/tiling/instances.h"

namespace kda::cuda {

void launch_prep_mma(const ChunkArgs& args, void* stream) {
  switch (mma_heads(args.shape.K, args.shape.V).K) {
#define KDA_MMA_K(K) \
  case K:            \
    return run_prep_mma<K>(args, stream);
#include "cuda/instances.def"
  }
}

}  // namespace kda::cuda
