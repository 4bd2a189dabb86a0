// Host side of the kernels for Hopper (sm_90a): the whole forward in one, the backward in two. (Of
// sequences in segments a scan is two launches or three.)
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.h"
#include "cuda/args.h"

namespace kda::cuda::hopper {

// Why the fused forward cannot serve this call on the current device, in one line; empty: it can.
std::string forward_reason_against(const ChunkForwardParams& params, const core::Problem& problem);

// The same for the backward: reverse scan and chunk-local part, no factors in memory.
std::string backward_reason_against(const ChunkBackwardParams& params,
                                    const core::Problem& problem);

// Whether the chunk-local kernel may leave chunks of such a call to those for any GPU.
bool retries_chunks(const ChunkBackwardParams& params);

// How many sequences of a call the scans cut into segments (segment_rule.h); at most, where only
// the device knows their lengths.
std::int64_t cut_sequences(const core::Problem& problem);

// Process-wide switches, on from the start: tests and benchmarks compare the paths.
void set_enabled(bool enabled);
void set_segments(bool enabled);
void set_standard_gate(bool enabled);
bool enabled();

// Reads args.shape, map, in; writes o and, where they are there, h and final_state.
void launch_forward(const ChunkArgs& args, void* stream);
// Reads args.shape, map, in, d_o, d_final_state; writes x, d_states and, where they are there, dv
// and d_initial_state.
void launch_reverse(const ChunkArgs& args, void* stream);
// Their parts in other units: standard gates; the states between two passes over segments.
void launch_standard_forward(const ChunkArgs& args, void* stream);
void launch_standard_reverse(const ChunkArgs& args, void* stream);
void launch_standard_local(const ChunkArgs& args, void* stream);
void launch_segments(const ChunkArgs& args, void* stream);
// The chunk-local part of the backward. Reads args.shape, map, in, h, d_o, d_states, x; writes dq
// and dk, or their shares per value head, dg, dbeta and the shares of the parameters' gradients. Of
// a standard gate it writes `retry`, too: which chunks of which heads it was not made for.
void launch_local(const ChunkArgs& args, void* stream);

// What the device code of this build and the current device can do.
struct DeviceSupport {
  bool built = false;  // device code for sm_90a is in this program
  int major = 0;       // compute capability of the current device, 0: none
  int minor = 0;
  int num_sms = 0;
};
DeviceSupport device_support();

}  // namespace kda::cuda::hopper
