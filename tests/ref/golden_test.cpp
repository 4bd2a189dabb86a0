// Numbers worked out independently of this library, in double.
#include <gtest/gtest.h>

#include <cmath>

#include "kda/kda.h"
#include "ref/gate.h"
#include "support/oracle.h"
#include "support/run.h"

namespace kda::test {
namespace {

double gate_value(double a_log, double z, std::optional<double> lower_bound) {
  const GateParams gate{view_of(&a_log, {1}), {}, lower_bound};
  return ref::gate_channel<double>(gate, 0, 0).value(z);
}

TEST(Gate, Golden_Standard) {
  EXPECT_NEAR(gate_value(0.0, 0.0, {}), -0.693147181, 5e-10);
  EXPECT_NEAR(gate_value(std::log(2.0), 1.0, {}), -2.626523375, 5e-10);
}

TEST(Gate, Golden_Safe) {
  EXPECT_NEAR(gate_value(0.0, 0.0, -5.0), -2.5, 5e-10);
  EXPECT_NEAR(gate_value(std::log(2.0), 1.0, -5.0), -4.403985390, 5e-10);
  // A softplus gate clamped at the bound would give -0.126928 here.
  EXPECT_NEAR(gate_value(0.0, -2.0, -5.0), -0.596015, 5e-7);
  EXPECT_NEAR(gate_value(0.0, 2.0, -5.0), -4.403985, 5e-7);
}

// dt_bias of a step size delta is the inverse of softplus.
TEST(Gate, Golden_SoftplusInverse) {
  EXPECT_NEAR(ref::softplus(-6.907255237), 1e-3, 1e-12);
  EXPECT_NEAR(ref::softplus(-2.252168461), 0.1, 1e-10);
}

// One head, three tokens, K = V = 2, zero initial state.
struct Worked {
  Case shape{
      .name = "golden", .T = 3, .K = 2, .V = 2, .initial_state = false, .d_final_state = false};
  CaseData data;

  Worked() {
    const auto tensor = [](std::vector<std::int64_t> extents, std::vector<double> values) {
      HostTensor t(std::move(extents));
      t.data = std::move(values);
      return t;
    };
    data.q = tensor({1, 3, 1, 2}, {1, 0, .6, .8, 0, 1});
    data.k = tensor({1, 3, 1, 2}, {.8, .6, 1, 0, .6, -.8});
    data.v = tensor({1, 3, 1, 2}, {1, 2, -1, .5, .25, -2});
    data.g = tensor({1, 3, 1, 2}, {-.1, -.2, -.5, -.05, -1, -.3});
    data.beta = tensor({1, 3, 1}, {.5, .9, .25});
    data.d_o = tensor({1, 3, 1, 2}, {1, -1, .5, 2, -.3, .7});
  }
};

void expect_golden(const Outputs& out) {
  const auto expect = [&](Quantity quantity, std::vector<double> values) {
    const HostTensor& given = out.at(quantity);
    ASSERT_EQ(given.data.size(), values.size()) << name_of(quantity);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(given.data[i], values[i], 5e-9) << name_of(quantity) << "[" << i << "]";
    }
  };
  expect(Quantity::kO, {.28284271, .56568542, -.21011551, .53436314, .06287696, .54954242});
  expect(Quantity::kFinalState, {-.23030255, -.08237195, .08892144, .77717034});
  expect(Quantity::kDg, {0, 0, .04715231, .86455635, .01909419, .13812591});
  expect(Quantity::kDk, {-.294613, 1.44092725, -.63956165, -.64870576, .03182365, -.21883912});
  expect(Quantity::kDbeta, {1.2577319, -.23910094, .80552398});
  EXPECT_EQ(out.at(Quantity::kDg).data[0], 0.0);  // only because the initial state is 0
}

TEST(Recurrent, Golden_ThreeTokens) {
  const Worked worked;
  expect_golden(oracle(worked.shape, worked.data));
}

TEST(Chunk, Golden_ThreeTokens) {
  const Worked worked;
  const TestBackend ref{"ref_f64", Backend::kRef, DType::kF64, Arithmetic::kF64, &host_memory()};
  const RunResult result = run_chunk(ref, worked.shape, worked.data);
  EXPECT_TRUE(result.unsupported.empty()) << result.unsupported;
  expect_golden(result.values);
}

}  // namespace
}  // namespace kda::test
