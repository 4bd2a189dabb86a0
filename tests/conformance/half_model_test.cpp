// The model of 16-bit operands that tolerances are taken from: without its rounding it is the
// operator, and its rounding is of the size that bf16 has.
#include "support/half_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/oracle.h"

namespace kda::test {
namespace {

std::vector<Case> model_cases() {
  return {{.name = "groups", .T = 133, .H = 2, .HV = 4, .K = 12, .V = 20},
          {.name = "layer",
           .T = 70,
           .HV = 2,
           .K = 16,
           .V = 16,
           .gate = GateInput::kSafe,
           .keys = Keys::kNormal,
           .betas = Betas::kLogitDoubled,
           .qk_l2norm = true},
          {.name = "packed_resets",
           .T = 130,
           .K = 8,
           .V = 8,
           .cu = {0, 0, 1, 66, 130},
           .decays = Decays::kResets},
          {.name = "identical_keys",
           .T = 150,
           .K = 16,
           .V = 8,
           .decays = Decays::kSlow,
           .keys = Keys::kIdentical,
           .betas = Betas::kNearOne}};
}

double relative_error(const HostTensor& expected, const HostTensor& given) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    error += (expected.data[i] - given.data[i]) * (expected.data[i] - given.data[i]);
    size += expected.data[i] * expected.data[i];
  }
  return size == 0.0 ? error : std::sqrt(error / size);
}

class HalfModel : public ::testing::TestWithParam<Case> {};

TEST_P(HalfModel, WithoutRounding_IsTheOracle) {
  const Case& c = GetParam();
  const CaseData data = make_data(c, DType::kBF16);
  const Outputs expected = oracle(c, data);
  for (const auto& [quantity, value] : half_operand_model(c, data, {}, DType::kF64))
    EXPECT_LE(relative_error(expected.at(quantity), value), 1e-9) << name_of(quantity);
}

TEST_P(HalfModel, Rounding_IsVisibleAndSmall) {
  const Case& c = GetParam();
  const CaseData data = make_data(c, DType::kBF16);
  const Outputs expected = oracle(c, data);
  const Outputs model = half_operand_model(c, data, {});
  for (Quantity quantity : {Quantity::kO, Quantity::kDq, Quantity::kDk}) {
    const double error = relative_error(expected.at(quantity), model.at(quantity));
    EXPECT_GE(error, 5e-4) << name_of(quantity);
    EXPECT_LE(error, 2e-2) << name_of(quantity);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HalfModel, ::testing::ValuesIn(model_cases()), CaseName());

}  // namespace
}  // namespace kda::test
