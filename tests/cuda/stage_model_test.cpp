// The stage formulas put together must be the recurrence: needs no GPU.
#include "cuda/stage_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ref/recurrent.h"
#include "support/random.h"

namespace kda::test {
namespace {

Mat normal(Random* random, std::int64_t rows, std::int64_t cols, double factor = 1.0) {
  Mat m(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      m(i, j) = factor * random->normal();
  }
  return m;
}

void expect_rows_near(const Mat& part, const Mat& whole, std::int64_t first, const char* name) {
  for (std::int64_t i = 0; i < part.rows(); ++i) {
    for (std::int64_t j = 0; j < part.cols(); ++j) {
      ASSERT_NEAR(part(i, j), whole(first + i, j), 1e-9) << name << " " << first + i << " " << j;
    }
  }
}

TEST(StageModel, StagesInOrder_AreTheRecurrence) {
  constexpr std::int64_t kT = 150;
  constexpr std::int64_t kK = 12;
  constexpr std::int64_t kV = 10;
  Random random(5);
  ref::HeadInputs<double> head;
  head.q = normal(&random, kT, kK, 0.3);
  head.k = normal(&random, kT, kK, 0.3);
  head.v = normal(&random, kT, kV);
  head.g_ln = Mat(kT, kK);
  head.beta = Mat(kT, 1);
  for (std::int64_t t = 0; t < kT; ++t) {
    head.beta(t, 0) = 1.6 * random.uniform();
    for (std::int64_t d = 0; d < kK; ++d)
      head.g_ln(t, d) = -std::exp(random.normal() - 2.0);
  }
  head.state0 = normal(&random, kK, kV);
  head.scale = 0.7;
  const Mat d_o = normal(&random, kT, kV);
  const Mat d_final = normal(&random, kK, kV);

  Mat o(kT, kV);
  Mat state = head.state0;
  ref::recurrent_head_forward<double>(head, &state, &o);
  const auto grad = ref::recurrent_head_backward<double>(head, d_o, d_final);
  const std::vector<StageChunk> chunks = run_all_stages(head, d_o, d_final);
  ASSERT_EQ(chunks.size(), 3U);
  std::int64_t first = 0;
  for (const StageChunk& c : chunks) {
    expect_rows_near(c.o, o, first, "o");
    expect_rows_near(c.dq, grad.dq, first, "dq");
    expect_rows_near(c.dk, grad.dk, first, "dk");
    expect_rows_near(c.dv, grad.dv, first, "dv");
    expect_rows_near(c.dg, grad.dg_ln, first, "dg");
    for (std::int64_t i = 0; i < c.L; ++i) {
      EXPECT_NEAR(c.dbeta[static_cast<std::size_t>(i)], grad.dbeta(first + i, 0), 1e-9);
    }
    first += c.L;
  }
  expect_rows_near(chunks.back().next_state, state, 0, "final state");
  expect_rows_near(chunks.front().before, grad.dstate0, 0, "gradient of the initial state");
}

}  // namespace
}  // namespace kda::test
