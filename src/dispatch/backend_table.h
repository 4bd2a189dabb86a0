// What a backend hands to the dispatcher: one function per operator, and one that says why a call
// cannot be served. The functions get validated arguments (core/problem.h).
#pragma once

#include <cstddef>
#include <string>

#include "core/problem.h"
#include "kda/backend.h"

namespace kda {

enum class Op : std::uint8_t {
  kGateForward,
  kGateBackward,
  kGateCumsumForward,
  kL2NormForward,
  kL2NormBackward,
  kChunkForward,
  kChunkBackward,
  kRecurrentForward,
};

const char* name_of(Op op);

struct BackendTable {
  Backend backend = Backend::kAuto;

  // Empty when this backend can serve `op` on `problem`, else the reason in one line.
  std::string (*unsupported)(Op op, const core::Problem& problem) = nullptr;

  void (*gate_forward)(const GateForwardParams&, const core::Problem&, const Context&) = nullptr;
  void (*gate_backward)(const GateBackwardParams&, const core::Problem&, const Context&) = nullptr;
  void (*gate_cumsum_forward)(const GateCumsumForwardParams&, const core::Problem&,
                              const Context&) = nullptr;
  void (*l2norm_forward)(const L2NormForwardParams&, const core::Problem&,
                         const Context&) = nullptr;
  void (*l2norm_backward)(const L2NormBackwardParams&, const core::Problem&,
                          const Context&) = nullptr;
  void (*chunk_forward)(const ChunkForwardParams&, const core::Problem&, const Context&) = nullptr;
  void (*chunk_backward)(const ChunkBackwardParams&, const core::Problem&,
                         const Context&) = nullptr;
  void (*recurrent_forward)(const RecurrentForwardParams&, const core::Problem&,
                            const Context&) = nullptr;

  // Scratch bytes; null = none.
  std::size_t (*gate_backward_workspace)(const GateBackwardParams&, const core::Problem&) = nullptr;
  std::size_t (*chunk_forward_workspace)(const ChunkForwardParams&, const core::Problem&) = nullptr;
  std::size_t (*chunk_backward_workspace)(const ChunkBackwardParams&,
                                          const core::Problem&) = nullptr;
  // Bytes of ChunkForwardParams::kept per 64-token block; null = nothing is kept.
  std::size_t (*chunk_kept_bytes_per_block)(const Dims&, DType io) = nullptr;
  std::size_t (*recurrent_forward_workspace)(const RecurrentForwardParams&,
                                             const core::Problem&) = nullptr;
};

// Adds or replaces a backend. The host backends are there from the start; the CUDA library calls
// this when it is loaded. `table` must live as long as the process.
void register_backend(const BackendTable* table);

}  // namespace kda
