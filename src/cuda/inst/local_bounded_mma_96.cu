#include "cuda/launch/local_bounded_mma.cuh"

template bool kda::cuda::run_local_bounded_mma<96>(const ChunkArgs&, void*);
