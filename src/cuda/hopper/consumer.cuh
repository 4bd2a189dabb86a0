// How an update warp goes through the ring: which slot holds its chunk, and who has to know that it
// is done.
#pragma once

#include "cuda/hopper/layout.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace kda::cuda::hopper {

// begin() at an item's first chunk; plan() the next one, if there are more, else the same once
// more, which is where go_on() goes; end() after an item. wait() and wait_next(): until the factors
// and values of these are there.
//
// Chunks come in turn from this block's own slots and from those that the other block
// sends to; rank 0 makes the first of a pair. All places follow from the number of the chunk.
//
// A chunk of ours may be replaced when both blocks have read it: that the other one has also says
// that the copy to it is complete, so nothing reads our slot any more. A chunk of the other block's
// is reported to its maker twice: to the `free` barrier of its slot, and to that of our foreign
// slot.
//
// Ordering. What these arrivals have to order are reads: by wgmma, which this warp has waited for,
// and of decays, betas and values, whose results have been used, so they are complete when the
// arrival is issued. (Products after an item's last chunk may still read its slot; nobody uses
// them.) The writes that follow in a foreign slot are those of the bulk engine alone, sent for by a
// thread that has seen this arrival. Nothing is published, so no release at the scope of the
// cluster is needed.
template <typename C>
class Consumer {
 public:
  __device__ explicit Consumer(std::uint32_t smem)
      : smem_(smem), rank_(blockIdx.x % 2), peer_(ptx::map_shared(smem, rank_ ^ 1U)) {}

  __device__ void begin() { here_ = place(); }
  __device__ void plan(bool more) {
    chunk_ += more ? 1U : 0U;
    next_ = place();
  }
  __device__ void go_on() { here_ = next_; }
  __device__ void end(bool any) { chunk_ += any ? 1U : 0U; }

  __device__ std::uint32_t slot_bytes() const { return here_.slot * C::kSlotBytes; }
  __device__ std::uint32_t small_bytes() const { return here_.slot * C::kSmallBytes; }
  __device__ std::uint32_t value_bytes() const { return here_.value * C::kValueBytes; }

  __device__ void wait() const { wait(here_); }
  __device__ void wait_next() const { wait(next_); }

  struct Done {
    std::uint32_t values;
    std::uint32_t free;     // of the maker's slot
    std::uint32_t foreign;  // of ours that it went through; 0: none
    __device__ void arrive(int lane) const {
      if constexpr (ptx::kWarpArrivals > 1) {
        ptx::mbarrier_arrive_mapped(values, true);
        ptx::mbarrier_arrive_mapped(free, true);
        ptx::mbarrier_arrive_mapped(foreign, foreign != 0);
      } else {  // three lanes at once
        const std::uint32_t barrier = lane == 0 ? values : (lane == 1 ? free : foreign);
        ptx::mbarrier_arrive_mapped(barrier, lane < (foreign != 0 ? 3 : 2));
      }
    }
  };
  __device__ Done done() const {
    return {values_free_barrier<C>(smem_, static_cast<int>(here_.value)), here_.free,
            here_.foreign};
  }

 private:
  static constexpr bool is_power(int x) { return (x & (x - 1)) == 0; }
  static_assert(is_power(C::kSlots) && is_power(C::kForeign) && is_power(C::kValueSlots));

  // What there is to know of a chunk, made while the one before is under way. Few words: two are
  // kept through all products.
  struct Place {
    std::uint32_t slot = 0;
    std::uint32_t value = 0;
    std::uint32_t parities = 0;  // of ready, of values loaded
    std::uint32_t free = 0;      // as in Done
    std::uint32_t foreign = 0;
  };
  __device__ Place place() const {
    const bool mine = chunk_ % 2 == rank_;
    const int own = static_cast<int>(chunk_ / 2 % C::kSlots);
    const int foreign = static_cast<int>(C::kSlots + chunk_ / 2 % C::kForeign);
    Place p;
    p.slot = static_cast<std::uint32_t>(mine ? own : foreign);
    p.value = chunk_ % C::kValueSlots;
    p.parities = (chunk_ / (mine ? 2 * C::kSlots : 2 * C::kForeign) & 1U) |
                 (chunk_ / C::kValueSlots & 1U) << 1;
    p.free = free_barrier<C>(mine ? smem_ : peer_, own);
    p.foreign = mine ? 0U : free_barrier<C>(peer_, foreign);
    return p;
  }
  __device__ void wait(const Place& p) const {
    ptx::mbarrier_wait_both(ready_barrier<C>(smem_, static_cast<int>(p.slot)), p.parities & 1U,
                            values_loaded_barrier<C>(smem_, static_cast<int>(p.value)),
                            p.parities >> 1);
  }

  std::uint32_t smem_;
  std::uint32_t rank_;
  std::uint32_t peer_;
  std::uint32_t chunk_ = 0;  // since the start; wraps round without harm
  Place here_;
  Place next_;
};

// A warpgroup without columns of its own, beside one that has them: frees what that one reads.
template <typename C>
__device__ inline void follow(Consumer<C>* at, int lane, int num_chunks) {
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    at->begin();
    at->wait();
    at->done().arrive(lane);
    at->end(true);
  }
}

}  // namespace kda::cuda::hopper
