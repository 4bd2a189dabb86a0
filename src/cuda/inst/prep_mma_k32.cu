#include "cuda/launch/prep_mma.cuh"

template void kda::cuda::run_prep_mma<32>(const ChunkArgs&, void*);
