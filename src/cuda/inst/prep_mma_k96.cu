#include "cuda/launch/prep_mma.cuh"

template void kda::cuda::run_prep_mma<96>(const ChunkArgs&, void*);
