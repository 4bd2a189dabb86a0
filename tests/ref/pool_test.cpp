// The oracle's state pool against the plain recurrence, by hand: the conformance suite then
// compares every backend's pool with the oracle's.
#include <gtest/gtest.h>

#include "kda/ops/recurrent.h"
#include "support/host_view.h"
#include "support/oracle.h"

namespace kda::test {
namespace {

const Context kRefBackend{.backend = Backend::kRef};

struct PoolCall {
  Case c{.name = "pool",
         .B = 3,
         .T = 4,
         .H = 1,
         .HV = 2,
         .K = 3,
         .V = 5,
         .initial_state = false,
         .d_o = false,
         .d_final_state = false,
         .seed = 21};
  CaseData data = make_data(c, DType::kF64);
  HostTensor pool{{6, 2, 3, 5}};
  HostTensor o{{3, 4, 2, 5}};

  PoolCall() {
    for (std::size_t i = 0; i < pool.data.size(); ++i) {
      pool.data[i] = 0.01 * static_cast<double>(i % 37) - 0.1;
    }
  }
  RecurrentForwardParams params() {
    RecurrentForwardParams p;
    p.in = f64_inputs(c, data);
    p.o = f64_view(o);
    p.pool.pool_kv = f64_view(pool);
    return p;
  }
};

// The state of batch row b after `tokens` tokens, from `slot` of `pool` (-1: from zero).
HostTensor states_by_hand(const PoolCall& s, std::int64_t b, const HostTensor* pool,
                          std::int64_t slot, std::int64_t tokens) {
  Case one = s.c;
  one.B = 1;
  one.T = tokens;
  const auto rows = [&](const HostTensor& x) {
    HostTensor y({1, tokens, x.extent(2), x.shape.size() == 4 ? x.extent(3) : 1});
    const auto per_token = static_cast<std::size_t>(y.extent(2) * y.extent(3));
    const std::size_t first = static_cast<std::size_t>(b * s.c.T) * per_token;
    std::copy_n(x.data.begin() + static_cast<std::ptrdiff_t>(first), y.data.size(), y.data.begin());
    if (x.shape.size() == 3) y.shape.pop_back();
    return y;
  };
  CaseData data;
  data.q = rows(s.data.q);
  data.k = rows(s.data.k);
  data.v = rows(s.data.v);
  data.g = rows(s.data.g);
  data.beta = rows(s.data.beta);
  if (slot >= 0) {
    data.state0 = HostTensor({1, s.c.HV, s.c.K, s.c.V});
    const std::size_t n = data.state0.data.size();
    std::copy_n(pool->data.begin() + slot * static_cast<std::int64_t>(n), n,
                data.state0.data.begin());
  }
  return oracle(one, data, {.forward = true, .backward = false}).at(Quantity::kFinalState);
}

void expect_slot(const HostTensor& pool, std::int64_t slot, const HostTensor& expected) {
  const std::size_t n = expected.data.size();
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(pool.data[static_cast<std::size_t>(slot) * n + i], expected.data[i])
        << "slot " << slot << " element " << i;
  }
}

void expect_untouched(const HostTensor& before, const HostTensor& after, std::int64_t slot) {
  const std::size_t n = before.data.size() / static_cast<std::size_t>(before.extent(0));
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = static_cast<std::size_t>(slot) * n + i;
    ASSERT_EQ(before.data[at], after.data[at]) << "slot " << slot;
  }
}

TEST(RecurrentPool, OneSlotPerRow_StartsAndEndsThere) {
  PoolCall s;
  const HostTensor before = s.pool;
  const std::int64_t slots[] = {4, -1, 1};
  RecurrentForwardParams p = s.params();
  p.pool.slots = view_of(slots, {3});
  recurrent_forward(p, kRefBackend);
  expect_slot(s.pool, 4, states_by_hand(s, 0, &before, 4, 4));
  expect_slot(s.pool, 1, states_by_hand(s, 2, &before, 1, 4));
  for (std::int64_t slot : {0, 2, 3, 5})
    expect_untouched(before, s.pool, slot);
}

TEST(RecurrentPool, SlotPerToken_WritesEveryState) {
  PoolCall s;
  s.c.B = 1;
  s.data = make_data(s.c, DType::kF64);
  s.o = HostTensor({1, 4, 2, 5});
  const HostTensor before = s.pool;
  const std::int32_t slots[] = {3, 0, -1, 5};
  const std::int32_t accepted[] = {2};  // starts from slots[0,1] = 0, which token 1 then overwrites
  RecurrentForwardParams p = s.params();
  p.pool.slots = view_of(slots, {1, 4});
  p.pool.num_accepted = view_of(accepted, {1});
  recurrent_forward(p, kRefBackend);
  expect_slot(s.pool, 3, states_by_hand(s, 0, &before, 0, 1));
  expect_slot(s.pool, 0, states_by_hand(s, 0, &before, 0, 2));
  expect_slot(s.pool, 5, states_by_hand(s, 0, &before, 0, 4));
  for (std::int64_t slot : {1, 2, 4})
    expect_untouched(before, s.pool, slot);
}

TEST(RecurrentPool, NoneAccepted_StartsFromZero) {
  PoolCall s;
  s.c.B = 1;
  s.data = make_data(s.c, DType::kF64);
  s.o = HostTensor({1, 4, 2, 5});
  const HostTensor before = s.pool;
  const std::int64_t slots[] = {3, 0, 1, 5};
  const std::int64_t accepted[] = {0};
  RecurrentForwardParams p = s.params();
  p.pool.slots = view_of(slots, {1, 4});
  p.pool.num_accepted = view_of(accepted, {1});
  recurrent_forward(p, kRefBackend);
  expect_slot(s.pool, 5, states_by_hand(s, 0, &before, -1, 4));
}

}  // namespace
}  // namespace kda::test
