// Validated description of one operator call. Every shape, dtype and value check of the library
// lives behind these functions, so that all backends refuse the same input with the same words.
#pragma once

#include <cstdint>
#include <vector>

#include "kda/dims.h"
#include "kda/ops/chunk.h"
#include "kda/ops/gate.h"
#include "kda/ops/l2norm.h"
#include "kda/ops/recurrent.h"

namespace kda::core {

// Tokens [begin, begin + length) of batch row `row` belong to one sequence.
struct Sequence {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t length = 0;
  std::int64_t first_block = 0;  // index of its first 64-token block in h_kv
};

struct Problem {
  Dims dims;
  DType io = DType::kF32;     // q, k, v, o
  DType accum = DType::kF32;  // parameters, states, arithmetic: f64 iff io is f64, else f32
  MemorySpace space = MemorySpace::kHost;
  double scale = 0.0;
  int chunk = 0;  // 0 for recurrent calls
  bool packed = false;
  bool raw_gate = false;
  bool beta_is_logit = false;

  // True when cu_seqlens lies in device memory: then `offsets` is empty and the kernels read it.
  bool offsets_on_device = false;
  std::vector<std::int64_t> offsets;      // N + 1 token offsets, packed on the host only
  std::int64_t num_state_blocks = 0;      // exact on the host, the bound T / 64 + N otherwise
  std::vector<std::int64_t> first_block;  // N entries, host only

  Sequence sequence(std::int64_t n) const;
};

// Sum over sequences of ceil(length / 64), from q's shape and cu_seqlens alone.
std::int64_t count_state_blocks(const OperatorInputs& inputs);

Problem check_chunk_forward(const ChunkForwardParams& params);
Problem check_chunk_backward(const ChunkBackwardParams& params);
Problem check_recurrent_forward(const RecurrentForwardParams& params);

// Gate and norm calls: dims.H, V, N are not used (N is set where cu_seqlens is given).
Problem check_gate_forward(const GateForwardParams& params);
Problem check_gate_backward(const GateBackwardParams& params);
Problem check_gate_cumsum_forward(const GateCumsumForwardParams& params);
Problem check_l2norm_forward(const L2NormForwardParams& params);
Problem check_l2norm_backward(const L2NormBackwardParams& params);

}  // namespace kda::core
