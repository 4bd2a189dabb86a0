// Launches of single instances, each compiled in a unit of inst/; the launch functions of a stage
// choose among them.
#pragma once

#include "cuda/args.h"

namespace kda::cuda {

template <int kK>
void run_prep_mma(const ChunkArgs& args, void* stream);

enum class Scan { kForward, kStates, kReverse };  // kStates: forward without the output
template <int kK, int kWarps>
void run_scan_mma(const ChunkArgs& args, Scan scan, void* stream);

// kPlain: every tensor is bf16 in 16-byte rows, K = kK and V = kV.
template <int kK, int kV, bool kPlain>
void run_local_mma(const ChunkArgs& args, void* stream);

// Returns false where the GPU has too little shared memory for it.
template <int kD>
bool run_local_bounded_mma(const ChunkArgs& args, void* stream);

// Prep and local stage of the chunks of args.retry, K = V = kD.
template <int kD>
void run_retries(const ChunkArgs& args, void* stream);
extern template void run_retries<64>(const ChunkArgs&, void*);
extern template void run_retries<128>(const ChunkArgs&, void*);

#define KDA_MMA_K(K) extern template void run_prep_mma<K>(const ChunkArgs&, void*);
#define KDA_MMA_SCAN(K, W) extern template void run_scan_mma<K, W>(const ChunkArgs&, Scan, void*);
#define KDA_MMA_LOCAL(K, V)                                                \
  extern template void run_local_mma<K, V, true>(const ChunkArgs&, void*); \
  extern template void run_local_mma<K, V, false>(const ChunkArgs&, void*);
#define KDA_MMA_BOUNDED(D) extern template bool run_local_bounded_mma<D>(const ChunkArgs&, void*);
#include "cuda/instances.def"

}  // namespace kda::cuda
