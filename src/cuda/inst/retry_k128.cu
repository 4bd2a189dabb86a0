#include "cuda/launch/retry.cuh"

template void kda::cuda::run_retries<128>(const ChunkArgs&, void*);
