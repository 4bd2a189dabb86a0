// l2norm_forward and l2norm_backward of every backend against the oracle in double.
#include "kda/ops/l2norm.h"

#include <gtest/gtest.h>

#include "conformance/expect.h"
#include "support/host_view.h"
#include "support/random.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

struct NormCase {
  std::string name;
  std::int64_t B, T, H, K;
  double amplitude;
  Layout layout;
  bool wide;  // outputs in f32 whatever x is
};
void PrintTo(const NormCase& c, std::ostream* os) { *os << c.name; }

class L2NormConformance : public ::testing::TestWithParam<std::tuple<TestBackend, NormCase>> {};

TEST_P(L2NormConformance, MatchesOracle) {
  const auto& [backend, c] = GetParam();
  const DType accum = backend.io == DType::kF64 ? DType::kF64 : DType::kF32;
  const DType out = c.wide ? accum : backend.io;
  Random random(61);
  HostTensor x({c.B, c.T, c.H, c.K});
  HostTensor dy(x.shape);
  for (double& value : x.data)
    value = rounded(c.amplitude * random.normal(), backend.io);
  for (double& value : dy.data)
    value = rounded(random.normal(), out);
  if (c.T > 2) {  // a zero row
    for (std::int64_t k = 0; k < c.K; ++k)
      x.at(0, 1, 0, k) = 0.0;
  }

  HostTensor y(x.shape), rstd({c.B, c.T, c.H}), dx(x.shape);
  const Context ref{.backend = Backend::kRef};
  l2norm_forward({f64_view(std::as_const(x)), kL2NormEps, f64_view(y), f64_view(rstd)}, ref);
  l2norm_backward(
      {f64_view(std::as_const(x)), f64_view(std::as_const(dy)), kL2NormEps, f64_view(dx)}, ref);

  DeviceTensor device_x(*backend.memory, backend.io, x.shape, c.layout);
  DeviceTensor device_dy(*backend.memory, out, x.shape, c.layout);
  DeviceTensor device_y(*backend.memory, out, x.shape, c.layout);
  DeviceTensor device_rstd(*backend.memory, accum, rstd.shape, Layout::kContiguous);
  DeviceTensor device_dx(*backend.memory, out, x.shape, c.layout);
  device_x.upload(x);
  device_dy.upload(dy);
  const Context context{.backend = backend.backend, .stream = backend.memory->stream()};
  const std::string refusal = refusal_of([&] {
    l2norm_forward({device_x.view(), kL2NormEps, device_y.view(), device_rstd.view()}, context);
    l2norm_backward({device_x.view(), device_dy.view(), kL2NormEps, device_dx.view()}, context);
  });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  // A zero row has dx = dy / sqrt(eps), a thousand times what the other rows have: judge it alone.
  HostTensor given_dx = device_dx.download();
  if (c.T > 2) {
    for (std::int64_t k = 0; k < c.K; ++k) {
      EXPECT_NEAR(given_dx.at(0, 1, 0, k), dx.at(0, 1, 0, k),
                  1e-2 * std::abs(dx.at(0, 1, 0, k)) + 1e-3);
      given_dx.at(0, 1, 0, k) = dx.at(0, 1, 0, k) = 0.0;
    }
  }
  expect_close({&backend, c.name, Quantity::kY, 0.0, nullptr}, y, device_y.download());
  expect_close({&backend, c.name, Quantity::kRstd, 0.0, nullptr}, rstd, device_rstd.download());
  // dy may lie along y (it does for K = 1), so dx is compared on the scale of its terms.
  const double terms = 1.0 / (c.amplitude * std::sqrt(static_cast<double>(c.K)));
  expect_close({&backend, c.name, Quantity::kDx, terms, nullptr}, dx, given_dx);
  for (const DeviceTensor* tensor : {&device_y, &device_rstd, &device_dx}) {
    EXPECT_EQ(tensor->damage(), "");
  }
  EXPECT_FALSE(device_x.changed() || device_dy.changed());
}

std::vector<NormCase> norm_cases() {
  return {
      {"k128", 2, 33, 3, 128, 1.0, Layout::kContiguous, false},
      {"k60", 1, 17, 2, 60, 1.0, Layout::kContiguous, false},
      {"k1", 1, 5, 2, 1, 1.0, Layout::kContiguous, false},
      {"k256_wide", 1, 9, 2, 256, 1.0, Layout::kContiguous, true},
      {"tiny", 1, 9, 2, 128, 1e-4, Layout::kContiguous, true},
      {"large", 1, 9, 2, 64, 100.0, Layout::kContiguous, false},
      {"fused_slice", 2, 9, 3, 40, 1.0, Layout::kFusedSlice, false},
      {"misaligned", 2, 9, 3, 40, 1.0, Layout::kMisaligned, false},
      {"head_major", 2, 9, 3, 40, 1.0, Layout::kHeadMajor, false},
      {"no_tokens", 2, 0, 3, 40, 1.0, Layout::kContiguous, false},
  };
}

INSTANTIATE_TEST_SUITE_P(All, L2NormConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(norm_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
