#include "cuda/launch/scan_mma.cuh"

template void kda::cuda::run_scan_mma<32, 2>(const ChunkArgs&, Scan, void*);
