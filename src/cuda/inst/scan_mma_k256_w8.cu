#include "cuda/launch/scan_mma.cuh"

template void kda::cuda::run_scan_mma<256, 8>(const ChunkArgs&, Scan, void*);
