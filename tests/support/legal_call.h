// A legal call whose parts a test spoils one at a time, and what its error must say.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kda/kda.h"

namespace kda::test {

// Storage large enough for every view below; the checks never look at values of tensors.
struct LegalCall {
  static constexpr std::int64_t B = 2, T = 12, H = 2, HV = 4, K = 6, V = 5;
  std::vector<float> memory = std::vector<float>(1 << 14, 0.0F);

  TensorView tensor(std::initializer_list<std::int64_t> shape) {
    return view_of(memory.data(), shape);
  }
  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    return view_of(static_cast<void*>(memory.data()), dtype, shape);
  }

  OperatorInputs inputs() {
    OperatorInputs in;
    in.q = tensor({B, T, H, K});
    in.k = tensor({B, T, H, K});
    in.v = tensor({B, T, HV, V});
    in.g_ln = tensor({B, T, HV, K});
    in.beta = tensor({B, T, HV});
    return in;
  }
  ChunkForwardParams forward() {
    ChunkForwardParams p;
    p.in = inputs();
    p.o = tensor({B, T, HV, V});
    return p;
  }
  ChunkBackwardParams backward() {
    ChunkBackwardParams p;
    p.in = inputs();
    p.d_o = tensor({B, T, HV, V});
    return p;
  }
  RecurrentForwardParams recurrent() {
    RecurrentForwardParams p;
    p.in = inputs();
    p.o = tensor({B, T, HV, V});
    return p;
  }
};

// `call` must throw kInvalidArgument with a text that has every one of `parts`.
template <typename Call>
void expect_refused(Call&& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "accepted, but an error with '" << parts.front() << "' was expected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    const std::string text = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
    }
  }
}

}  // namespace kda::test
