// Parts of cases and of their outputs: one sequence, one range of tokens.
#pragma once

#include <vector>

#include "support/cases.h"
#include "support/quantity.h"
#include "support/run.h"

namespace kda::test {

// Tokens [begin, begin + length) of batch row b, with state `state` (of N), as a case of its own.
struct Slice {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t length = 0;
  std::int64_t state = 0;
};

// Sequence n of a case, dense or packed.
Slice sequence_of(const Case& c, std::int64_t n);

Case slice_case(const Case& c, const Slice& slice);
CaseData slice_data(const CaseData& data, const Slice& slice);

enum class Extent : std::uint8_t { kTokens, kStates, kBlocks, kParameters };
Extent extent_of(Quantity quantity);

// The stored bytes of the slice's part of an output; empty for parameters and blocks.
std::vector<unsigned char> slice_bits(const RunResult& result, Quantity quantity,
                                      const Slice& slice);

}  // namespace kda::test
