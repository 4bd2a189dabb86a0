#include "cuda/launch/prep_mma.cuh"

template void kda::cuda::run_prep_mma<256>(const ChunkArgs&, void*);
