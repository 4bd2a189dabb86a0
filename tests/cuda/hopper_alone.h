// One sequence of a call as a call of its own: its bits must not depend on its neighbours.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/run.h"

namespace kda::test {

// Rows [first, first + count) of the leading `dims` dimensions taken as one.
inline HostTensor rows_of(const HostTensor& from, std::size_t dims, std::int64_t first,
                          std::int64_t count) {
  std::int64_t rows = 1;
  for (std::size_t d = 0; d < dims; ++d)
    rows *= from.shape[d];
  std::vector<std::int64_t> shape = from.shape;
  std::fill_n(shape.begin(), dims, 1);
  shape[dims - 1] = count;
  HostTensor to(shape);
  const auto size = static_cast<std::int64_t>(from.data.size()) / rows;
  std::copy_n(from.data.begin() + first * size, count * size, to.data.begin());
  return to;
}

// Sequence `n` of a case, tokens [begin, end) of all of them, as a call of its own.
struct Alone {
  Case c;
  CaseData data;
};
inline Alone alone(const Case& c, const CaseData& data, std::int64_t n, std::int64_t begin,
                   std::int64_t end) {
  Alone one{c, data};
  one.c.B = 1;
  one.c.T = end - begin;
  one.c.cu.clear();
  const auto tokens = [&](const HostTensor& from) { return rows_of(from, 2, begin, end - begin); };
  one.data.q = tokens(data.q);
  one.data.k = tokens(data.k);
  one.data.v = tokens(data.v);
  one.data.g = tokens(data.g);
  one.data.beta = tokens(data.beta);
  one.data.d_o = tokens(data.d_o);
  one.data.state0 = rows_of(data.state0, 1, n, 1);
  one.data.d_final_state = rows_of(data.d_final_state, 1, n, 1);
  return one;
}

inline void expect_same_bits(const TestBackend& backend, const Case& c, const CaseData& data,
                             const RunResult& all, std::int64_t n, std::int64_t begin,
                             std::int64_t end) {
  const Alone one = alone(c, data, n, begin, end);
  const RunResult single = run_chunk(backend, one.c, one.data);
  for (Quantity quantity : {Quantity::kO, Quantity::kDq, Quantity::kDk, Quantity::kDv,
                            Quantity::kDg, Quantity::kDbeta}) {
    EXPECT_EQ(rows_of(all.values.at(quantity), 2, begin, end - begin).data,
              single.values.at(quantity).data)
        << name_of(quantity) << " of sequence " << n;
  }
  for (Quantity quantity : {Quantity::kFinalState, Quantity::kDState0}) {
    EXPECT_EQ(rows_of(all.values.at(quantity), 1, n, 1).data, single.values.at(quantity).data)
        << name_of(quantity) << " of sequence " << n;
  }
}

}  // namespace kda::test
