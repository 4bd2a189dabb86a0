#include "cuda/launch/scan_mma.cuh"

template void kda::cuda::run_scan_mma<96, 6>(const ChunkArgs&, Scan, void*);
