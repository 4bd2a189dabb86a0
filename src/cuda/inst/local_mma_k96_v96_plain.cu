#include "cuda/launch/local_mma.cuh"

template void kda::cuda::run_local_mma<96, 96, true>(const ChunkArgs&, void*);
