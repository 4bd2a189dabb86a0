#include "support/slices.h"

#include <algorithm>

namespace kda::test {
namespace {

// Rows [first, first + count) of dimension `dim`, after fixing dimension 0 at `row` when dim is 1.
HostTensor part(const HostTensor& x, std::size_t dim, std::int64_t row, std::int64_t first,
                std::int64_t count) {
  if (!x.defined()) return {};
  std::vector<std::int64_t> shape = x.shape;
  shape[0] = 1;
  shape[dim] = count;
  HostTensor out(shape);
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < x.shape.size(); ++d)
    inner *= x.shape[d];
  const std::int64_t start = (dim == 1 ? row * x.shape[1] + first : first) * inner;
  std::copy_n(x.data.begin() + start, out.data.size(), out.data.begin());
  return out;
}

}  // namespace

Slice sequence_of(const Case& c, std::int64_t n) {
  if (c.cu.empty()) return {n, 0, c.T, n};
  const auto i = static_cast<std::size_t>(n);
  return {0, c.cu[i], c.cu[i + 1] - c.cu[i], n};
}

Case slice_case(const Case& c, const Slice& slice) {
  Case out = c;
  out.B = 1;
  out.T = slice.length;
  out.cu.clear();
  return out;
}

CaseData slice_data(const CaseData& data, const Slice& slice) {
  CaseData out = data;
  for (HostTensor* x : {&out.q, &out.k, &out.v, &out.g, &out.beta, &out.d_o}) {
    *x = part(*x, 1, slice.row, slice.begin, slice.length);
  }
  for (HostTensor* x : {&out.state0, &out.d_final_state}) {
    *x = part(*x, 0, 0, slice.state, 1);
  }
  return out;
}

Extent extent_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::kFinalState:
    case Quantity::kDState0:
      return Extent::kStates;
    case Quantity::kH:
      return Extent::kBlocks;
    case Quantity::kDaLog:
    case Quantity::kDDtBias:
      return Extent::kParameters;
    default:
      return Extent::kTokens;
  }
}

std::vector<unsigned char> slice_bits(const RunResult& result, Quantity quantity,
                                      const Slice& slice) {
  const std::vector<unsigned char>& bits = result.bits.at(quantity);
  const std::vector<std::int64_t>& shape = result.values.at(quantity).shape;
  const Extent extent = extent_of(quantity);
  if (extent == Extent::kBlocks || extent == Extent::kParameters || bits.empty()) return {};
  std::int64_t rows = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  if (extent == Extent::kTokens) {
    rows = shape[0] * shape[1];
    first = slice.row * shape[1] + slice.begin;
    count = slice.length;
  } else {
    rows = shape[0];
    first = slice.state;
    count = 1;
  }
  const std::int64_t bytes = static_cast<std::int64_t>(bits.size()) / rows;
  return {bits.begin() + first * bytes, bits.begin() + (first + count) * bytes};
}

}  // namespace kda::test
