// How an update warp goes through the ring: which slot holds its chunk, and who has to know that it
// is done.
#pragma once

#include "cuda/hopper/layout.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace kda::cuda::hopper {

// begin() at an item's first chunk; plan() the next one, if there are more, else the same once
// more, which is where go_on() goes; end() after an item. wait(): until factors and values are
// there.
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

  __device__ void wait() const {
    ptx::mbarrier_wait_both(here_.ready, here_.parity, here_.values, here_.value_parity);
  }

  struct Done {
    std::uint32_t values;
    std::uint32_t free;     // of the maker's slot
    std::uint32_t foreign;  // of ours that it went through; 0: none
    __device__ void arrive(int lane) const {
      const bool on = ptx::kWarpArrivals > 1 || lane == 0;
      ptx::mbarrier_arrive_mapped(values, on);
      ptx::mbarrier_arrive_mapped(free, on);
      ptx::mbarrier_arrive_mapped(foreign, on && foreign != 0);
    }
  };
  __device__ Done done() const { return here_.done; }

 private:
  static constexpr bool is_power(int x) { return (x & (x - 1)) == 0; }
  static_assert(is_power(C::kSlots) && is_power(C::kForeign) && is_power(C::kValueSlots));

  // What there is to know of a chunk, made while the one before is under way.
  struct Place {
    std::uint32_t slot = 0;
    std::uint32_t value = 0;
    std::uint32_t ready = 0;
    std::uint32_t parity = 0;
    std::uint32_t values = 0;
    std::uint32_t value_parity = 0;
    Done done = {0, 0, 0};
  };
  __device__ Place place() const {
    const bool mine = chunk_ % 2 == rank_;
    const int own = static_cast<int>(chunk_ / 2 % C::kSlots);
    const int foreign = static_cast<int>(C::kSlots + chunk_ / 2 % C::kForeign);
    const int value = static_cast<int>(chunk_ % C::kValueSlots);
    const int slot = mine ? own : foreign;
    Place p;
    p.slot = static_cast<std::uint32_t>(slot);
    p.value = static_cast<std::uint32_t>(value);
    p.ready = ready_barrier<C>(smem_, slot);
    p.parity = chunk_ / (mine ? 2 * C::kSlots : 2 * C::kForeign) & 1U;
    p.value_parity = chunk_ / C::kValueSlots & 1U;
    p.done = {values_free_barrier<C>(smem_, value), free_barrier<C>(mine ? smem_ : peer_, own),
              mine ? 0U : free_barrier<C>(peer_, foreign)};
    p.values = values_loaded_barrier<C>(smem_, value);
    return p;
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
