// Launches of the chunk-local backward. Included by one unit per kind of gate.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/hopper/local.cuh"
#include "cuda/hopper/narrow.cuh"
#include "cuda/hopper/scan.h"
#include "cuda/launch/check.cuh"

namespace kda::cuda::hopper {

template <bool kStandard>
void run_local(const ChunkArgs& args, void* stream) {
  const std::int64_t items = args.map.num_chunks * args.shape.HV;
  if (items > 2147483647) {
    throw Error(ErrorCode::kUnsupported, "hopper local: " + std::to_string(items) +
                                             " chunks of heads, expected at most 2147483647");
  }
  const std::int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const bool grouped = args.dq_part != nullptr;
  if (args.shape.K == 64) {
    using L = narrow::NarrowLayout;
    auto* kernel = grouped ? narrow::local_kernel<L, true, kStandard>
                           : narrow::local_kernel<L, false, kStandard>;
    launch("hopper local", kernel, std::min((items + L::kStreams - 1) / L::kStreams, sms),
           L::kThreads, L::kSmemBytes, stream, args, static_cast<std::uint32_t>(items));
    return;
  }
  using L = LocalLayout;
  auto* kernel = grouped ? local_kernel<L, true, kStandard> : local_kernel<L, false, kStandard>;
  launch("hopper local", kernel, std::min(items, sms), L::kThreads, L::kSmemBytes, stream, args,
         static_cast<std::uint32_t>(items));
}

}  // namespace kda::cuda::hopper
