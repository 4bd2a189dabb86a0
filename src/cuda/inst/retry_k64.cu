#include "cuda/launch/retry.cuh"

template void kda::cuda::run_retries<64>(const ChunkArgs&, void*);
