// Tables that packed calls need: offsets as int64, first chunk of each sequence, sequence of each
// chunk; for the scans on Hopper also the pieces that they are cut into, longest first.
#pragma once

#include "cuda/hopper/segment_rule.h"
#include "cuda/tile/chunk.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda {

// Up to 448 offsets travel as a kernel argument, so that host memory is read before the call
// returns and nothing of it is needed at replay of a graph.
inline constexpr int kOffsetsPerLaunch = 448;
struct OffsetArgs {
  std::int64_t value[kOffsetsPerLaunch];
};

__global__ void __launch_bounds__(256) write_offsets_kernel(const __grid_constant__ OffsetArgs args,
                                                            std::int64_t* offsets, int count) {
  for (int i = threadIdx.x; i < count; i += 256)
    offsets[i] = args.value[i];
}

// The threads' values combined, over those before: an exclusive scan over a block of 1024.
template <typename T, typename Op>
__device__ T block_before(T value, T none, Op op, T (&of_warps)[32]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  T upto = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(0xffffffffU, upto, step);
    if (lane >= step) upto = op(upto, other);
  }
  __syncthreads();  // the scan before is read
  if (lane == 31) of_warps[warp] = upto;
  __syncthreads();  // sums of warps before their scan
  if (warp == 0) {
    T all = of_warps[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const T other = __shfl_up_sync(0xffffffffU, all, step);
      if (lane >= step) all = op(all, other);
    }
    of_warps[lane] = all;
  }
  __syncthreads();  // their scan before its readers
  const T before = __shfl_up_sync(0xffffffffU, upto, 1);
  const T inside = lane == 0 ? none : before;
  return warp == 0 ? inside : op(of_warps[warp - 1], inside);
}
struct Larger {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a > b ? a : b; }
};
struct Sum {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a + b; }
};

// A thread's run of consecutive entries.
struct Run {
  std::int64_t begin, end;
};
__device__ inline Run run_of(std::int64_t count) {
  const std::int64_t each = (count + 1023) / 1024;
  const std::int64_t begin = threadIdx.x * each;
  return {begin, begin + each < count ? begin + each : count};
}

// cu_seqlens from device memory; made non-decreasing and within [0, T].
__device__ inline void read_offsets(const Tensor& cu, std::int64_t count, std::int64_t T,
                                    std::int64_t* offsets, std::int64_t (&of_warps)[32]) {
  const Run run = run_of(count);
  std::int64_t top = 0;
  for (std::int64_t i = run.begin; i < run.end; ++i)
    top = Larger{}(top, load_index(cu, i * cu.s0));
  top = block_before<std::int64_t>(top, 0, Larger{}, of_warps);
  for (std::int64_t i = run.begin; i < run.end; ++i) {
    top = Larger{}(top, load_index(cu, i * cu.s0));
    offsets[i] = i == 0 ? 0 : (top < T ? top : T);
  }
}

__global__ void __launch_bounds__(1024)
    read_offsets_kernel(Tensor cu, std::int64_t count, std::int64_t T, std::int64_t* offsets) {
  __shared__ std::int64_t of_warps[32];
  read_offsets(cu, count, T, offsets, of_warps);
}

// first_chunk[n] = sum over m < n of ceil(length_m / 64), and the sequence of every chunk: the last
// whose first chunk is not behind it, or -1 past the end.
__device__ inline void make_chunks(const ChunkMap& map, std::int64_t N,
                                   std::int64_t (&of_warps)[32]) {
  const auto chunks_of = [&](std::int64_t n) {
    return (map.offsets[n + 1] - map.offsets[n] + kC - 1) / kC;
  };
  const Run run = run_of(N);
  std::int64_t sum = 0;
  for (std::int64_t n = run.begin; n < run.end; ++n)
    sum += chunks_of(n);
  sum = block_before<std::int64_t>(sum, 0, Sum{}, of_warps);
  for (std::int64_t n = run.begin; n < run.end; ++n) {
    map.first_chunk[n] = sum;
    sum += chunks_of(n);
  }
  if (run.end == N && run.begin <= N) map.first_chunk[N] = sum;  // such threads: the same total
  __syncthreads();  // first chunks before the search among them
  const std::int64_t total = map.first_chunk[N];
  for (std::int64_t c = threadIdx.x; c < map.num_chunks; c += 1024) {
    std::int64_t low = 0;
    std::int64_t high = N;  // first_chunk[low] <= c < first_chunk[high]
    while (c < total && high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      if (map.first_chunk[middle] <= c) {
        low = middle;
      } else {
        high = middle;
      }
    }
    map.chunk_seq[c] = c < total ? static_cast<std::int32_t>(low) : -1;
  }
}

// Pieces of scans, longest first: sequences by classes of length, eight per power of two. The order
// inside of a class is that of arrival; no result depends on it.
inline constexpr int kClasses = 256;
struct PieceSmem {
  std::int32_t places[2][kClasses];  // pieces of a class, then the place of the next one
  std::int64_t of_warps[32];
};
__device__ inline int length_class(std::int64_t blocks) {  // 0: the longest
  int length = static_cast<int>(blocks);
  if (blocks >= 16) {
    const int log = 31 - __clz(static_cast<int>(blocks));
    length = 16 + 8 * (log - 4) + static_cast<int>((blocks >> (log - 3)) & 7);
  }
  return kClasses - 1 - length;
}
__device__ inline void make_pieces(const std::int64_t* offsets, std::int64_t N,
                                   const Segments& segments, PieceSmem& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int most = segments.most;
  const Run run = run_of(N);
  if (thread < kClasses) s.places[0][thread] = s.places[1][thread] = 0;
  __syncthreads();  // zeros before the counts
  const auto look = [&](std::int64_t n, int* count) {
    const std::int64_t tokens = offsets[n + 1] - offsets[n];
    *count = hopper::segment_count(most, tokens);
    return length_class((tokens / *count + kC - 1) / kC);
  };
  std::int64_t cuts = 0;
  for (std::int64_t n = run.begin; n < run.end; ++n) {
    int count = 0;
    const int c = look(n, &count);
    atomicAdd(&s.places[0][c], hopper::first_pass_pieces(count));
    atomicAdd(&s.places[1][c], count - 1);
    cuts += count > 1 ? 1 : 0;
  }
  const std::int64_t all_cuts = cuts;
  cuts = block_before<std::int64_t>(cuts, 0, Sum{}, s.of_warps);
  if (thread == 1023) segments.counts[2] = static_cast<std::int32_t>(cuts + all_cuts);
  for (int pass = 0; pass < 2; ++pass) {
    const int size = thread < kClasses ? s.places[pass][thread] : 0;
    const auto before =
        static_cast<std::int32_t>(block_before<std::int64_t>(size, 0, Sum{}, s.of_warps));
    if (thread < kClasses) s.places[pass][thread] = before;
    if (thread == 1023) segments.counts[pass] = before;
  }
  __syncthreads();  // places before the pieces that go there
  for (std::int64_t n = run.begin; n < run.end; ++n) {
    int count = 0;
    const int c = look(n, &count);
    const int sizes[2] = {hopper::first_pass_pieces(count), count - 1};
    Piece piece;
    piece.n = static_cast<std::int32_t>(n);
    piece.cut = count > 1 ? static_cast<std::int32_t>(cuts++) : -1;
    for (int pass = 0; pass < 2; ++pass) {
      const int place = atomicAdd(&s.places[pass][c], sizes[pass]);
      for (piece.which = 0; piece.which < sizes[pass]; ++piece.which)
        segments.pieces[pass][place + piece.which] = piece;
    }
  }
}

// Where the offsets of a packed call are.
enum class OffsetSource : std::int32_t { kArgument, kTensor, kReady };

// Every table of a packed call, by one block.
__global__ void __launch_bounds__(1024)
    packed_tables_kernel(const __grid_constant__ OffsetArgs given, OffsetSource source, Tensor cu,
                         std::int64_t N, const __grid_constant__ ChunkMap map,
                         const __grid_constant__ Segments segments) {
  __shared__ PieceSmem s;
  if (source == OffsetSource::kArgument) {
    for (int i = threadIdx.x; i <= N; i += 1024)
      map.offsets[i] = given.value[i];
  } else if (source == OffsetSource::kTensor) {
    read_offsets(cu, N + 1, map.T, map.offsets, s.of_warps);
  }
  __syncthreads();  // offsets before their readers
  make_chunks(map, N, s.of_warps);
  if (segments.counts != nullptr) make_pieces(map.offsets, N, segments, s);
}

}  // namespace kda::cuda
