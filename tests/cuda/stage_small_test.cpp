// The stages that are operators or kernels of their own: gate, gate_cumsum, gate_bwd, the L2 norm,
// the fold over value heads and the sums of parameter gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/args.h"
#include "cuda/convert.h"
#include "cuda/cuda_backends.h"
#include "cuda/launch/launch.h"
#include "cuda/stage_rig.h"
#include "kda/ops/gate.h"
#include "support/random.h"
#include "support/run.h"

namespace kda::test {
namespace {

class SmallStage : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    backend_ = cuda_backends()[0];
  }
  DeviceTensor tensor(const HostTensor& values) const {
    DeviceTensor t(*backend_.memory, DType::kF32, values.shape, Layout::kContiguous);
    t.upload(values);
    return t;
  }
  DeviceTensor empty(std::vector<std::int64_t> shape) const {
    return {*backend_.memory, DType::kF32, std::move(shape), Layout::kContiguous};
  }
  TestBackend backend_;
  Random random_{23};
};

HostTensor normal_tensor(Random* random, std::vector<std::int64_t> shape) {
  HostTensor t(std::move(shape));
  for (double& x : t.data)
    x = rounded(random->normal(), DType::kF32);
  return t;
}

TensorView device(const DeviceTensor& t) { return t.view(); }

// gate, gate_cumsum and gate_bwd as operators, f32, both formulas.
TEST_F(SmallStage, Gate) {
  constexpr std::int64_t kT = 150, kHV = 3, kK = 40, kChunk = 64;
  constexpr double kLowerBound = -5.0;
  for (const bool bounded : {false, true}) {
    const HostTensor x = normal_tensor(&random_, {1, kT, kHV, kK});
    const HostTensor rate = normal_tensor(&random_, {kHV});
    const HostTensor bias = normal_tensor(&random_, {kHV, kK});
    const HostTensor d_out = normal_tensor(&random_, {1, kT, kHV, kK});
    std::vector<double> g, sums, dx, da(kHV), dbias(kHV * kK);
    for (std::int64_t t = 0; t < kT; ++t) {
      for (std::int64_t hv = 0; hv < kHV; ++hv) {
        for (std::int64_t d = 0; d < kK; ++d) {
          const double e = std::exp(rate.at(hv));
          const double z = x.at(0, t, hv, d) + bias.at(hv, d);
          const double s = 1.0 / (1.0 + std::exp(bounded ? -e * z : -z));
          g.push_back(bounded ? kLowerBound * s : -e * std::log1p(std::exp(z)));
          const double before = t % kChunk == 0 ? 0.0 : sums[sums.size() - kHV * kK];
          sums.push_back(before + g.back() / std::log(2.0));
          const double dy = d_out.at(0, t, hv, d);
          dx.push_back(bounded ? dy * kLowerBound * s * (1.0 - s) * e : -dy * e * s);
          da[static_cast<std::size_t>(hv)] += bounded ? dx.back() * z : dy * g.back();
          dbias[static_cast<std::size_t>(hv * kK + d)] += dx.back();
        }
      }
    }
    const DeviceTensor x_in = tensor(x), rate_in = tensor(rate), bias_in = tensor(bias);
    const DeviceTensor dy_in = tensor(d_out);
    const DeviceTensor g_out = empty(x.shape), sum_out = empty(x.shape), dx_out = empty(x.shape);
    const DeviceTensor da_out = empty({kHV}), dbias_out = empty({kHV, kK});
    GateParams gate;
    gate.a_log = device(rate_in);
    gate.dt_bias = device(bias_in);
    if (bounded) gate.lower_bound_ln = kLowerBound;
    Context context;
    context.backend = Backend::kCuda;
    context.stream = backend_.memory->stream();
    GateForwardParams forward;
    forward.g_raw = device(x_in);
    forward.gate = gate;
    forward.g_ln = device(g_out);
    gate_forward(forward, context);
    GateCumsumForwardParams cumsum;
    cumsum.g_raw = device(x_in);
    cumsum.gate = gate;
    cumsum.chunk = kChunk;
    cumsum.gcum_log2 = device(sum_out);
    gate_cumsum_forward(cumsum, context);
    GateBackwardParams backward;
    backward.g_raw = device(x_in);
    backward.gate = gate;
    backward.dg_ln = device(dy_in);
    backward.dg_raw = device(dx_out);
    backward.da_log = device(da_out);
    backward.d_dt_bias = device(dbias_out);
    const GuardedWorkspace workspace(*backend_.memory,
                                     gate_backward_workspace_bytes(backward, context));
    context.workspace = workspace.get();
    gate_backward(backward, context);
    const char* label = bounded ? "bounded" : "standard";
    expect_stage("gate", "g_ln", "f32 operator", label, g_out.download().data, g, 1e-5);
    expect_stage("gate_cumsum", "gcum_log2", "f32 operator", label, sum_out.download().data, sums,
                 1e-5);
    expect_stage("gate_bwd", "dg_raw", "f32 operator", label, dx_out.download().data, dx, 1e-5);
    expect_stage("gate_bwd", "dA_log", "f32 operator", label, da_out.download().data, da, 1e-4);
    expect_stage("gate_bwd", "d dt_bias", "f32 operator", label, dbias_out.download().data, dbias,
                 1e-5);
  }
}

// dq = sum over the group's value heads, then the norm's backward.
TEST_F(SmallStage, Fold) {
  constexpr std::int64_t kT = 70, kH = 3, kG = 4, kK = 100;
  for (const bool norm : {false, true}) {
    const HostTensor q = normal_tensor(&random_, {1, kT, kH, kK});
    const HostTensor parts = normal_tensor(&random_, {1, kT, kH * kG, kK});
    const DeviceTensor dq_part = tensor(parts);
    const DeviceTensor x = tensor(q);
    const DeviceTensor dq = empty({1, kT, kH, kK});
    const DeviceTensor dk = empty({1, kT, kH, kK});
    cuda::ChunkArgs args;
    args.shape = {1, kT, 1, kH, kH * kG, kG, kK, 1};
    args.in.q = args.in.k = cuda::to_tensor(x.view());
    args.in.l2norm = norm;
    args.dq_part = args.dk_part = static_cast<float*>(dq_part.view().data);
    args.dq = cuda::to_tensor(dq.view());
    args.dk = cuda::to_tensor(dk.view());
    cuda::launch_finish(args, backend_.memory->stream());
    std::vector<double> want;
    for (std::int64_t t = 0; t < kT; ++t) {
      for (std::int64_t h = 0; h < kH; ++h) {
        std::vector<double> dy(kK), y(kK);
        double square = 1e-6, dot = 0.0;
        for (std::int64_t d = 0; d < kK; ++d) {
          for (std::int64_t g = 0; g < kG; ++g)
            dy[static_cast<std::size_t>(d)] += parts.at(0, t, h * kG + g, d);
          square += q.at(0, t, h, d) * q.at(0, t, h, d);
        }
        const double rstd = norm ? 1.0 / std::sqrt(square) : 1.0;
        for (std::int64_t d = 0; d < kK; ++d) {
          y[static_cast<std::size_t>(d)] = norm ? q.at(0, t, h, d) * rstd : 0.0;
          dot += y[static_cast<std::size_t>(d)] * dy[static_cast<std::size_t>(d)];
        }
        for (std::size_t d = 0; d < kK; ++d)
          want.push_back(rstd * (dy[d] - dot * y[d]));
      }
    }
    const char* label = norm ? "with the norm's backward" : "sum alone";
    expect_stage("fold", "dq over 4 value heads", "f32 K=100", label, dq.download().data, want,
                 1e-5);
    expect_stage("fold", "dk over 4 value heads", "f32 K=100", label, dk.download().data, want,
                 1e-5);
  }
}

TEST_F(SmallStage, SumsOfParameterGradients) {
  constexpr std::int64_t kBlocks = 300, kHV = 5, kK = 70, kParts = 3;
  const HostTensor bias = normal_tensor(&random_, {kBlocks, kHV, kK});
  const HostTensor scalar = normal_tensor(&random_, {kBlocks, kHV, kParts});
  const DeviceTensor bias_part = tensor(bias);
  const DeviceTensor scalar_part = tensor(scalar);
  const DeviceTensor d_bias = empty({kHV, kK});
  const DeviceTensor da_log = empty({kHV});
  void* stream = backend_.memory->stream();
  cuda::launch_sum_blocks(static_cast<float*>(bias_part.view().data),
                          static_cast<float*>(d_bias.view().data), kBlocks, kHV, kK, nullptr,
                          stream);
  cuda::launch_sum_scalars(static_cast<float*>(scalar_part.view().data),
                           static_cast<float*>(da_log.view().data), kBlocks, kHV, kParts, nullptr,
                           stream);
  std::vector<double> want(kHV * kK), want_scalar(kHV);
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    for (std::int64_t hv = 0; hv < kHV; ++hv) {
      for (std::int64_t d = 0; d < kK; ++d)
        want[static_cast<std::size_t>(hv * kK + d)] += bias.at(b, hv, d);
      for (std::int64_t p = 0; p < kParts; ++p)
        want_scalar[static_cast<std::size_t>(hv)] += scalar.at(b, hv, p);
    }
  }
  expect_stage("gate_bwd", "d dt_bias, sum of 300 chunks", "f32", "", d_bias.download().data, want,
               1e-5);
  expect_stage("gate_bwd", "dA_log, sum of 300 chunks", "f32", "", da_log.download().data,
               want_scalar, 1e-5);
}

}  // namespace
}  // namespace kda::test
