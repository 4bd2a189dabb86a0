// Which of the two decode kernels serves a call. The choice does not change a bit of the results.
#pragma once

#include <cstdint>

namespace kda::cuda {

struct DecodeCall {
  std::int64_t sequences = 0;
  std::int64_t value_heads = 0;
  bool one_token = false;  // per sequence, not packed
  bool bf16_states = false;
  bool norm = false;  // of the output
};

// True: a block or two per state (decode_one.cuh); false: the ring (decode.cuh). Where they cross
// was measured on an H200 with 96 heads.
constexpr bool decodes_at_once(const DecodeCall& call, std::int64_t num_sms) {
  constexpr std::int64_t kMostGrid = 65535;
  if (!call.one_token || call.sequences > kMostGrid) return false;
  const std::int64_t states = call.sequences * call.value_heads;
  if (call.bf16_states) return states <= 56 * num_sms;
  // Between the two, rounds of blocks in step with each other leave the memory idle.
  return states <= 4 * num_sms || (!call.norm && states >= 8 * num_sms);
}

}  // namespace kda::cuda
