#include <algorithm>

#include "cuda/kernels/meta.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_offsets(const PackedOffsets& from, std::int64_t N, std::int64_t T,
                    std::int64_t* offsets, void* stream) {
  if (from.device.data != nullptr) {
    launch("read_offsets", read_offsets_kernel, 1, 1024, 0, stream, from.device, N + 1, T, offsets);
    return;
  }
  for (std::int64_t first = 0; first <= N; first += kOffsetsPerLaunch) {
    OffsetArgs batch{};
    const int count = static_cast<int>(std::min<std::int64_t>(kOffsetsPerLaunch, N + 1 - first));
    std::copy_n(from.host + first, count, batch.value);
    launch("write_offsets", write_offsets_kernel, 1, 256, 0, stream, batch, offsets + first, count);
  }
}

void launch_chunk_map(const ChunkMap& map, std::int64_t N, void* stream) {
  launch("first_chunk", first_chunk_kernel, 1, 1024, 0, stream, map.offsets, N, map.first_chunk);
  launch("chunk_sequence", chunk_sequence_kernel, (map.num_chunks + 255) / 256, 256, 0, stream,
         map.first_chunk, N, map.num_chunks, map.chunk_seq);
}

}  // namespace kda::cuda
