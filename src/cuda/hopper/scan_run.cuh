// Which form of the scan kernel a call takes, and its launches. Included by one unit per kind of
// gate.
#pragma once

#include <algorithm>
#include <string>

#include "cuda/hopper/scan.cuh"
#include "cuda/hopper/scan.h"
#include "cuda/hopper/tiling.h"
#include "cuda/launch/check.cuh"

namespace kda::cuda::hopper {

// What a launch is for: forward, forward that keeps states, reverse scan.
enum class Kind { kPlain, kStates, kReverse };
template <Kind kKind, bool kStandard, int kK, int kValueGroups, int kPrepGroups, int kSlots,
          int kUpdate, int kPrep, int kForeign = 0, int kValueSlots = 0>
using Make =
    Config<kK, kValueGroups, kPrepGroups, kSlots, kUpdate, kPrep, 32, kKind == Kind::kStates,
           kKind == Kind::kReverse, kStandard, kForeign, kValueSlots>;

// Warpgroups (update, prep), slots, registers (update, prep); in a cluster slots for the other
// block's chunks and for values.
template <Kind kKind, bool kStandard>
struct Whole128 : Make<kKind, kStandard, 128, 2, 2, kKind == Kind::kPlain ? 12 : 10, 160, 64> {};
// Two blocks per head, each with half of its columns.
template <Kind kKind, bool kStandard>
struct Pair128 : Make<kKind, kStandard, 128, 1, 2, 8, 208, 120, 4, 8> {};
// Two blocks per piece of a first pass: end and map of a segment, or halves as above.
template <Kind kKind, bool kStandard>
struct Maps128 : Make<kKind, kStandard, 128, 2, 1, 8, 176, 128, 4, 8> {};
template <bool kStandard>
struct Maps128<Kind::kReverse, kStandard>
    : Make<Kind::kReverse, kStandard, 128, 2, 1, 8, 192, 96, 4, 8> {};
template <Kind kKind, bool kStandard>
struct Whole64 : Make<kKind, kStandard, 64, 1, 2, 16, 160, 120> {};
// First pass: end and map of a segment in one block.
template <Kind kKind, bool kStandard>
struct Maps64 : Make<kKind, kStandard, 64, 2, 2, 16, 152, 72> {};

template <typename C>
void run(const ChunkArgs& args, std::int64_t items, int num_sms, void* stream) {
  const std::int64_t most = 2147483647 - 2 * std::int64_t{num_sms};  // numbers of items: 32 bits
  if (items > most) {
    throw Error(ErrorCode::kUnsupported, "hopper scan: " + std::to_string(items) +
                                             " heads of sequences, expected at most " +
                                             std::to_string(most));
  }
  auto* kernel = scan_kernel<C, true>;  // select.cpp lets no call without the norm through
  const char* what = C::kReverse ? "hopper reverse scan" : "hopper forward";
  if constexpr (C::kCluster) {
    launch_pairs(what, kernel, std::min<std::int64_t>(items, num_sms / 2), C::kThreads,
                 C::kSmemBytes, stream, args, static_cast<int>(items));
  } else {
    launch(what, kernel, std::min<std::int64_t>(items, num_sms), C::kThreads, C::kSmemBytes, stream,
           args, static_cast<int>(items));
  }
}

// One pass over `heads` pieces: value heads of sequences or of segments.
template <Kind kKind, bool kStandard>
void run_pass(const ChunkArgs& args, std::int64_t heads, int num_sms, void* stream) {
  if (args.shape.K == 64) {
    if (args.segments.pass == 1) {
      run<Maps64<kKind, kStandard>>(args, heads, num_sms, stream);
    } else {
      run<Whole64<kKind, kStandard>>(args, heads, num_sms, stream);
    }
    return;
  }
  if (args.segments.pass == 1) {
    run<Maps128<kKind, kStandard>>(args, heads, num_sms, stream);
  } else if (args.segments.pass == 2 || form_of_heads(heads, num_sms) == HeadForm::kPair) {
    // The second pass begins with the chain, which is in this form alone.
    run<Pair128<kKind, kStandard>>(args, heads, num_sms, stream);
  } else {
    run<Whole128<kKind, kStandard>>(args, heads, num_sms, stream);
  }
}

template <Kind kKind, bool kStandard>
void run_scan(const ChunkArgs& args, void* stream) {
  const int num_sms = device_attribute(cudaDevAttrMultiProcessorCount);
  const Segments& segments = args.segments;
  const std::int64_t HV = args.shape.HV;
  if (segments.most == 1) {
    run_pass<kKind, kStandard>(args, args.shape.N * HV, num_sms, stream);
    return;
  }
  ChunkArgs pass = args;
  pass.segments.pass = 1;
  const std::int64_t more = first_pass_pieces(segments.most) - 1;
  run_pass<kKind, kStandard>(pass, (args.shape.N + segments.cuts * more) * HV, num_sms, stream);
  pass.segments.pass = 2;
  const std::int64_t rest = segments.cuts * (segments.most - 1) * HV;
  if (args.shape.K == 64) launch_segments(args, stream);
  run_pass<kKind, kStandard>(pass, rest, num_sms, stream);
}

}  // namespace kda::cuda::hopper
