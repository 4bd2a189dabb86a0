#include "cuda/launch/local_mma.cuh"

template void kda::cuda::run_local_mma<32, 32, true>(const ChunkArgs&, void*);
