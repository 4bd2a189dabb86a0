#include "cuda/launch/local_mma.cuh"

template void kda::cuda::run_local_mma<128, 128, false>(const ChunkArgs&, void*);
