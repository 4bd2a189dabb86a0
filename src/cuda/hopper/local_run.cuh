// Launches of the chunk-local backward. Included by one unit per kind of gate.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/hopper/local.cuh"
#include "cuda/hopper/scan.h"
#include "cuda/launch/check.cuh"

namespace kda::cuda::hopper {

template <int kHalves, bool kStandard>
void run_local(const ChunkArgs& args, std::int64_t items, void* stream) {
  using L = LocalLayout<kHalves>;
  const bool grouped = args.dq_part != nullptr;
  auto* kernel = grouped ? local_kernel<L, true, kStandard> : local_kernel<L, false, kStandard>;
  const std::int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const std::int64_t blocks = (items + L::kStreams - 1) / L::kStreams;
  launch("hopper local", kernel, std::min(blocks, sms), L::kThreads, L::kSmemBytes, stream, args,
         static_cast<std::uint32_t>(items));
}

template <bool kStandard>
void run_local(const ChunkArgs& args, void* stream) {
  const std::int64_t items = args.map.num_chunks * args.shape.HV;
  if (items > 2147483647) {
    throw Error(ErrorCode::kUnsupported, "hopper local: " + std::to_string(items) +
                                             " chunks of heads, expected at most 2147483647");
  }
  if (args.shape.K == 64) {
    run_local<1, kStandard>(args, items, stream);
  } else {
    run_local<2, kStandard>(args, items, stream);
  }
}

}  // namespace kda::cuda::hopper
