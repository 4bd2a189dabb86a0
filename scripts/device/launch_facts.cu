// Threads and dynamic shared memory of the kernels for any GPU, as kernel_table.py reads them:
//   nvcc -std=c++20 -arch=sm_90a -Isrc -Iinclude scripts/device/launch_facts.cu -o facts && ./facts
// Numbers only: needs no GPU. The fused kernels for Hopper are in docs/ops/chunk-hopper.md.
#include <cstdio>

#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/decode_one.cuh"
#include "cuda/kernels/local_bounded_mma.cuh"
#include "cuda/kernels/local_mma.cuh"
#include "cuda/kernels/local_simt.cuh"
#include "cuda/kernels/prep_simt.cuh"
#include "cuda/kernels/recurrent.cuh"

namespace {

using namespace kda::cuda;

void fact(const char* kernel, int threads, std::size_t bytes) {
  std::printf("%s %d %zu\n", kernel, threads, bytes);
}

template <int kK>
void recurrent(const char* name32, const char* name64) {
  fact(name32, kRecurrentThreads<kK, 32>, 0);
  fact(name64, kRecurrentThreads<kK, 64>, 0);
}

}  // namespace

int main() {
#define KDA_MMA_K(K)                                                           \
  fact("prep_mma_kernel<" #K ",0>", kPrepThreads, sizeof(PrepTile<K, false>)); \
  fact("prep_mma_kernel<" #K ",1>", kPrepThreads, sizeof(PrepTile<K, true>));
#define KDA_MMA_SCAN(K, W)                                                      \
  fact("scan_fwd_mma_kernel<" #K "," #W ",0>", 32 * W, sizeof(ScanSmem<K, W>)); \
  fact("scan_fwd_mma_kernel<" #K "," #W ",1>", 32 * W, sizeof(ScanSmem<K, W>)); \
  fact("scan_rev_mma_kernel<" #K "," #W ">", 32 * W, sizeof(ScanSmem<K, W>));
#define KDA_MMA_LOCAL(K, V)                                                             \
  fact("local_mma_kernel<" #K "," #V ",0>", kLocalThreads<K>, sizeof(LocalSmem<K, V>)); \
  fact("local_mma_kernel<" #K "," #V ",1>", kLocalThreads<K>, sizeof(LocalSmem<K, V>));
#define KDA_MMA_BOUNDED(D) \
  fact("local_bounded_mma_kernel<" #D ">", kBoundedThreads<D>, sizeof(BoundedSmem<D>));
#include "cuda/instances.def"
  fact("decode_kernel<float,0>", kDecodeThreads, sizeof(DecodeSmem<float>));
  fact("decode_kernel<float,1>", kDecodeThreads, sizeof(DecodeSmem<float>));
  fact("decode_kernel<unsignedshort,0>", kDecodeThreads, sizeof(DecodeSmem<std::uint16_t>));
  fact("decode_kernel<unsignedshort,1>", kDecodeThreads, sizeof(DecodeSmem<std::uint16_t>));
  fact("decode_one_kernel<float,0>", kOneThreads<false>, 0);
  fact("decode_one_kernel<float,1>", kOneThreads<true>, 0);
  fact("decode_one_kernel<unsignedshort,0>", kOneThreads<false>, 0);
  fact("decode_one_kernel<unsignedshort,1>", kOneThreads<true>, 0);
  fact("prep_simt_kernel", kSimtThreads, sizeof(SimtPrepSmem));
  fact("scan_fwd_simt_kernel<0>", kSimtThreads, sizeof(SimtScanSmem));
  fact("scan_fwd_simt_kernel<1>", kSimtThreads, sizeof(SimtScanSmem));
  fact("scan_rev_simt_kernel", kSimtThreads, sizeof(SimtScanSmem));
  for (const char* type : {"<float>", "<unsignedshort>"}) {
    char name[64];
    std::snprintf(name, sizeof(name), "wy_simt_kernel%s", type);
    fact(name, kSimtThreads, sizeof(SimtWySmem));
    std::snprintf(name, sizeof(name), "output_bwd_simt_kernel%s", type);
    fact(name, kSimtThreads, sizeof(SimtPairSmem));
    std::snprintf(name, sizeof(name), "intra_bwd_simt_kernel%s", type);
    fact(name, kSimtThreads, sizeof(SimtIntraSmem));
  }
#define KDA_RECURRENT(K)                                                          \
  recurrent<K>("recurrent_kernel<" #K ",32,0>", "recurrent_kernel<" #K ",64,0>"); \
  recurrent<K>("recurrent_kernel<" #K ",32,1>", "recurrent_kernel<" #K ",64,1>");
  KDA_RECURRENT(32)
  KDA_RECURRENT(64)
  KDA_RECURRENT(128)
  KDA_RECURRENT(256)
  for (const char* name :
       {"value_bwd_kernel", "gate_forward_kernel", "gate_backward_kernel", "gate_cumsum_kernel",
        "l2norm_kernel", "write_offsets_kernel", "sum_scalars_kernel"})
    fact(name, 256, 0);
  for (const char* name :
       {"packed_tables_kernel", "read_offsets_kernel", "sum_blocks_kernel", "finish_kernel"})
    fact(name, 1024, 0);
}
