// The chain of the states at the ends of segments: what lies between the two passes over them.
//
// In [K, V]: S_r = M_r S_(r-1) + E_r for the ranks r = 1 .. P - 2 of every sequence that is cut,
// S_0 is where rank 0 ended; f32, in a fixed order, in place of E. A link of work is 16 value
// columns of a head; 128 threads have two rows of 8 columns each, with heads of 64 of 4. The next
// map (of heads of 64: three, and the next end) is on its way while this one is used.
//
// Of heads of 64 the chain is a launch of its own (segments.cuh). In clusters it is the
// beginning of the second pass: each block, before its ring is in use, draws links until none is
// left, and counts what it has finished; who starts at a rank from 2 on waits until all links of
// its head are counted. That ends, whatever part of the grid runs at a time: a link is only held by
// a block that runs, and such a block waits for no other; a block waits only after it has seen that
// all links are drawn. (The two blocks of a cluster, which meet in between, always run together.)
#pragma once

#include "cuda/hopper/work.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_words.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda::hopper {

template <int kHead>  // K = V
struct SegmentSmem {
  static constexpr int kD = kHead;
  static constexpr int kColumns = 16;
  static constexpr int kThreads = 128;
  static constexpr int kLinks = kD / kColumns;                       // of a head
  static constexpr int kFours = kD * kColumns / (2 * 4 * kThreads);  // columns of a thread / 4
  // Heads of 64 have more links, each an eighth of the work: what they read is sent for earlier.
  static constexpr int kMaps = kD == 64 ? 4 : 2;
  float map[kMaps][kD * kD];  // [column, row]
  float state[2][kD][kColumns];
};

// Links are numbered by heads of the sequences that are cut. All kAll threads of the block come;
// the first SegmentSmem::kThreads compute, all of them load.
template <int kAll, int kD>
__device__ inline void make_link(const ChunkArgs& args, SegmentSmem<kD>& s, std::uint32_t link) {
  constexpr int kColumns = SegmentSmem<kD>::kColumns;
  constexpr int kThreads = SegmentSmem<kD>::kThreads;
  constexpr int kFours = SegmentSmem<kD>::kFours;
  constexpr int kMaps = SegmentSmem<kD>::kMaps;
  constexpr bool kAhead = kMaps > 2;
  static_assert(!kAhead || kAll == kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const bool computes = kAll == kThreads || thread < kThreads;
  const int k = 2 * (thread % (kD / 2));
  const int v = thread / (kD / 2) * (4 * kFours);
  const int v0 = static_cast<int>(link) % (kD / kColumns) * kColumns;
  const std::int64_t head = link / (kD / kColumns);  // of the sequences that are cut
  const std::int64_t n = head / args.shape.HV;
  const std::int64_t hv = head - n * args.shape.HV;
  const int ranks = args.segments.most - 1;  // that have a matrix
  const std::int64_t first = (n * ranks * args.shape.HV + hv) * kD * kD;
  const std::int64_t next = static_cast<std::int64_t>(args.shape.HV) * kD * kD;
  const auto load_map = [&](int rank) {
    const float* from = args.segments.maps + first + rank * next + 4 * thread;
    const std::uint32_t to = smem_address(s.map[rank % kMaps]) + 16 * thread;
#pragma unroll 8
    for (int round = 0; round < kD * kD / (4 * kAll); ++round) {
      ptx::cp_async(to + 16 * kAll * round, from + 4 * kAll * round);
    }
    ptx::cp_async_commit();
  };
  if (ranks < 2 || (args.segments.counts != nullptr && n >= args.segments.counts[2])) return;
  load_map(1);
  if constexpr (kAhead) {
    for (int rank = 2; rank < kMaps; ++rank) {
      if (rank < ranks) load_map(rank);
    }
  }
  // [row of the two][four columns of a thread's]
  float4* end = reinterpret_cast<float4*>(args.segments.ends + first + k * kD + v0 + v);
  if (computes) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int four = 0; four < kFours; ++four)
        *reinterpret_cast<float4*>(&s.state[0][k + row][v + 4 * four]) = end[kD / 4 * row + four];
    }
  }
  const auto load_end = [&](const float4* from, float4(&to)[2][kFours]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int four = 0; four < kFours; ++four)
        to[row][four] = from[kD / 4 * row + four];
    }
  };
  float4 coming[2][kFours];
  if constexpr (kAhead) load_end(end + next / 4, coming);
  for (int rank = 1; rank < ranks; ++rank) {
    if (rank + kMaps - 1 < ranks) load_map(rank + kMaps - 1);
    end += next / 4;
    float4 sum[2][kFours];
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < 2 * kFours; ++i)
        sum[i / kFours][i % kFours] = coming[i / kFours][i % kFours];
      if (rank + 1 < ranks) load_end(end + next / 4, coming);
    } else {
      if (computes) load_end(end, sum);
    }
    if (rank + kMaps - 1 < ranks) {
      ptx::cp_async_wait<kMaps - 1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();  // map and state before their readers
    if (computes) {
      const float* map = s.map[rank % kMaps] + k;
      const auto& now = s.state[(rank + 1) % 2];
#pragma unroll 16
      for (int j = 0; j < kD; ++j) {
        const float2 m = *reinterpret_cast<const float2*>(map + j * kD);
#pragma unroll
        for (int four = 0; four < kFours; ++four) {
          const float4 x = *reinterpret_cast<const float4*>(&now[j][v + 4 * four]);
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const float factor = row == 0 ? m.x : m.y;
            sum[row][four].x = fmaf(factor, x.x, sum[row][four].x);
            sum[row][four].y = fmaf(factor, x.y, sum[row][four].y);
            sum[row][four].z = fmaf(factor, x.z, sum[row][four].z);
            sum[row][four].w = fmaf(factor, x.w, sum[row][four].w);
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int four = 0; four < kFours; ++four) {
          end[kD / 4 * row + four] = sum[row][four];
          *reinterpret_cast<float4*>(&s.state[rank % 2][k + row][v + 4 * four]) = sum[row][four];
        }
      }
    }
    __syncthreads();  // this map is read before the one after the next takes its place
  }
}

// Words behind the maps, where blocks share heads: [0] links that have been drawn, [1 + place]
// those of a head that are done, at the place of its rank 0 (as Work::place). The first pass zeroes
// them; the second is behind it in the stream.
__device__ inline std::uint32_t* chain_words(const ChunkArgs& args) {
  const std::int64_t matrices =
      args.segments.cuts * (args.segments.most - 1) * static_cast<std::int64_t>(args.shape.HV);
  return reinterpret_cast<std::uint32_t*>(args.segments.maps +
                                          matrices * args.shape.K * args.shape.V);
}

// One block, in the first pass.
template <typename C>
__device__ inline void clear_chain(const ChunkArgs& args) {
  if (blockIdx.x != 0) return;
  const std::int64_t words = 1 + args.segments.cuts * (args.segments.most - 1) * args.shape.HV;
  std::uint32_t* to = chain_words(args);
  for (std::int64_t i = threadIdx.x; i < words; i += C::kThreads)
    to[i] = 0;
}

// The block's share of the chain, in the memory of its ring, by all threads.
template <typename C>
__device__ inline void make_chain(const ChunkArgs& args, char* shared) {
  using Smem = SegmentSmem<C::kK>;
  static_assert(sizeof(Smem) + sizeof(std::uint32_t) <= C::kBarriers);
  auto& s = *reinterpret_cast<Smem*>(shared);
  auto* drawn = reinterpret_cast<std::uint32_t*>(shared + sizeof(Smem));
  const Segments& segments = args.segments;
  const std::int64_t cuts = segments.counts == nullptr ? segments.cuts : segments.counts[2];
  const std::uint32_t links =
      segments.most < 3 ? 0U : static_cast<std::uint32_t>(cuts) * args.shape.HV * Smem::kLinks;
  std::uint32_t* words = chain_words(args);
  while (true) {
    if (threadIdx.x == 0) *drawn = atomicAdd(words, 1U);
    __syncthreads();  // the draw before its readers; a link's own barriers let them all have it
    const std::uint32_t link = *drawn;
    if (link >= links) break;
    make_link<C::kThreads>(args, s, link);  // ends with a barrier behind its stores
    if (threadIdx.x == 0) {
      const std::uint32_t head = link / Smem::kLinks;
      const std::uint32_t n = head / args.shape.HV;
      const std::int64_t place =
          static_cast<std::int64_t>(n) * (segments.most - 2) * args.shape.HV + head;
      ptx::add_release(words + 1 + place, 1U);
    }
  }
  // What the chain read and wrote, before copies by the bulk engine and reads by products.
  ptx::fence_async_shared();
}

// Until the chain has made the state that an item starts with. (Rank 1 starts where rank 0 ended.)
template <typename C>
__device__ inline void wait_chain(const ChunkArgs& args, const Work& w, int lane) {
  if (C::kValueGroups > 1 || args.segments.pass != 2 || w.rank < 2) return;
  if (lane == 0) {
    const std::uint32_t* done =
        chain_words(args) + 1 + w.place - static_cast<std::int64_t>(w.rank) * args.shape.HV;
    while (ptx::load_acquire(done) < SegmentSmem<C::kK>::kLinks)
      ptx::sleep_nanoseconds(50);
  }
  __syncwarp();  // what one lane has seen, before the others' reads
}

}  // namespace kda::cuda::hopper
