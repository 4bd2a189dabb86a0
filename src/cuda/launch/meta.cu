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

void launch_packed_tables(const PackedOffsets& from, std::int64_t N, const ChunkMap& map,
                          const Segments& segments, void* stream) {
  OffsetArgs given{};
  OffsetSource source = OffsetSource::kTensor;
  if (from.device.data == nullptr) {
    source = N < kOffsetsPerLaunch ? OffsetSource::kArgument : OffsetSource::kReady;
    if (source == OffsetSource::kArgument) {
      std::copy_n(from.host, N + 1, given.value);
    } else {
      launch_offsets(from, N, map.T, map.offsets, stream);
    }
  }
  launch("packed_tables", packed_tables_kernel, 1, 1024, 0, stream, given, source, from.device, N,
         map, segments);
}

}  // namespace kda::cuda
