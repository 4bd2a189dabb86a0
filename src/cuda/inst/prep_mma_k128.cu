#include "cuda/launch/prep_mma.cuh"

template void kda::cuda::run_prep_mma<128>(const ChunkArgs&, void*);
