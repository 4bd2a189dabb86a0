// How many warps (of 16 value columns each) share a block of a scan.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace kda::cuda {

// Relative time of a chunk step, which grows slower than the columns do.
constexpr std::int64_t scan_step_cost(int warps) {
  return warps == 8 ? 23 : warps == 6 ? 19 : warps == 4 ? 15 : 12;
}

// Widest block of a key head's instances: 96 columns are whole only with 6 warps.
constexpr int scan_widest(std::int64_t head_k) { return head_k == 32 ? 2 : head_k == 96 ? 6 : 8; }

// The choice with the fewest rounds of blocks over the GPU, weighted by the time of a round.
constexpr int scan_warps(std::int64_t heads, int V, std::int64_t head_k, std::int64_t num_sms) {
  int best = 2;
  std::int64_t best_cost = -1;
  for (int warps : {scan_widest(head_k), 4, 2}) {
    if (warps > scan_widest(head_k)) continue;
    if (warps > 2 && 16 * (warps / 2) >= V) continue;  // half of the warps would have no columns
    const std::int64_t blocks = heads * ((V + 16 * warps - 1) / (16 * warps));
    const std::int64_t cost = (blocks + num_sms - 1) / num_sms * scan_step_cost(warps);
    if (best_cost < 0 || cost < best_cost) {
      best = warps;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace kda::cuda
