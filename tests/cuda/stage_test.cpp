// Every stage of the chunked operator on its own: its kernel is given exact inputs and compared
// with the formulas in double (stage_model.h). Where stages share a kernel, inputs are chosen that
// switch the others off: with a_qk = I and qt = 0 the output of the scan is v_new, with a tiny beta
// the inverse is I - beta a_kk, without states the backward is intra_bwd alone, and so on.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/convert.h"
#include "cuda/cuda_backends.h"
#include "cuda/launch/launch.h"
#include "cuda/stage_rig.h"
#include "support/random.h"

namespace kda::test {
namespace {

struct Param {
  int backend;  // of cuda_backends(): f32, bf16, f16
  StageShape shape;
};

constexpr StageShape kShape128{160, 1, 2, 128, 128};
constexpr StageShape kShape64{160, 2, 2, 64, 64};
const Param kParams[] = {{0, kShape64}, {0, {160, 1, 2, 48, 40}},  {1, kShape128},
                         {1, kShape64}, {1, {160, 1, 2, 128, 64}}, {2, kShape128}};

Mat column(const std::vector<double>& x) {
  Mat m(static_cast<std::int64_t>(x.size()), 1);
  for (std::size_t i = 0; i < x.size(); ++i)
    m(static_cast<std::int64_t>(i), 0) = x[i];
  return m;
}

Mat identity(std::int64_t rows, std::int64_t cols) {
  Mat m(rows, cols);
  for (std::int64_t i = 0; i < std::min(rows, cols); ++i)
    m(i, i) = 1.0;
  return m;
}

Mat scaled(Mat m, double factor) {
  for (std::int64_t i = 0; i < m.rows(); ++i) {
    for (std::int64_t j = 0; j < m.cols(); ++j)
      m(i, j) *= factor;
  }
  return m;
}

Mat zeros_like(const Mat& m) { return Mat(m.rows(), m.cols()); }

// Everything that a scan reads as the model has it, then the scan.
void place_and_scan(StageRig* r) {
  r->place_inputs();
  r->place_factors();
  r->place_ends();
  r->make_scan_outputs();
  r->scan_forward();
}

void place_and_reverse(StageRig* r) {
  r->place_inputs();
  r->place_factors();
  r->place_ends();
  r->make_reverse_outputs();
  r->scan_reverse();
}

void place_all_for_local(StageRig* r) {
  r->place_inputs();
  r->place_factors();
  r->place_states();
  r->place_d_states();
  r->place_x();
  r->make_local_outputs();
  r->local();
  r->for_each([](StageChunk& c) { local_bwd(&c); });
}

class Stage : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    backend_ = cuda_backends()[static_cast<std::size_t>(GetParam().backend)];
  }
  StageRig rig(StageGate gate) const { return {backend_, GetParam().shape, gate}; }
  bool exact() const { return backend_.io == DType::kF32; }
  // Limits: rounding of one stage in f32, and with bf16 operands.
  double limit(double with_half_operands) const { return exact() ? 2e-5 : with_half_operands; }
  // dg is what remains of sums that cancel where the decay is strong.
  double gate_limit() const { return exact() ? 1e-4 : 2e-2; }
  static constexpr StageGate kReadyGates[] = {StageGate::kMild, StageGate::kStrong,
                                              StageGate::kSlow};
  static constexpr StageGate kAllGates[] = {StageGate::kMild, StageGate::kStrong, StageGate::kSlow,
                                            StageGate::kBounded, StageGate::kStandard};
  TestBackend backend_;
};

// gate, gate_cumsum (its end), a_qk, t_inv and the scaled rows, as the prep kernel makes them.
TEST_P(Stage, Intra_EveryFactor) {
  for (const StageGate gate : kAllGates) {
    StageRig r = rig(gate);
    r.place_inputs();
    r.make_factor_outputs();
    r.prep();
    r.expect_tiles(
        "intra", "kt", "kt", [](const StageChunk& c) { return c.kt; }, limit(4e-3));
    r.expect_tiles(
        "intra", "kh", "kh", [](const StageChunk& c) { return c.kh; }, limit(4e-3));
    r.expect_tiles(
        "intra", "qt", "qt", [](const StageChunk& c) { return c.qt; }, limit(4e-3));
    r.expect_tiles(
        "intra", "a_qk", "n", [](const StageChunk& c) { return c.a_qk; }, limit(5e-3),
        /*lower=*/true);
    r.expect_tiles(
        "intra", "t_inv", "a", [](const StageChunk& c) { return c.t_inv; }, limit(5e-3),
        /*lower=*/true);
    std::vector<double> got, want;  // log2 again, where the decay is no denormal
    const HostTensor decay = r.get("decay");
    for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
      for (std::size_t i = 0; i < r.heads[hv].size(); ++i) {
        const StageChunk& c = r.heads[hv][i];
        for (std::int64_t d = 0; d < c.gcum.cols(); ++d) {
          if (c.gcum(c.L - 1, d) < -120.0) continue;
          got.push_back(std::log2(decay.at(i, hv, 0, d)));
          want.push_back(c.gcum(c.L - 1, d));
        }
      }
    }
    if (!want.empty()) r.expect("gate_cumsum", "sum of a chunk, log2", got, want, 1e-4);
  }
}

// For beta = 2^-20 the inverse is I - beta a_kk to one part in 10^4.
TEST_P(Stage, Intra_KeyProducts) {
  constexpr double kBeta = 0x1p-20;
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    r.for_each([](StageChunk& c) { c.beta.assign(c.beta.size(), 0x1p-20); });
    r.place_inputs();
    r.make_factor_outputs();
    r.prep();
    const HostTensor a = r.get("a");
    std::vector<double> got, want;
    for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
      for (std::size_t n = 0; n < r.heads[hv].size(); ++n) {
        const StageChunk& c = r.heads[hv][n];
        for (std::int64_t i = 0; i < c.L; ++i) {
          for (std::int64_t j = 0; j < i; ++j) {
            got.push_back(-a.at(n, hv, i, j) / kBeta);
            want.push_back(c.a_kk(i, j));
          }
        }
      }
    }
    r.expect("intra", "a_kk", got, want, exact() ? 2e-4 : 5e-3);
  }
}

// a_qk = I, qt = 0 and a state that stays: what the scan puts out is v_new = u - w S.
void show_new_values(StageRig* r) {
  r->for_each([](StageChunk& c) {
    c.a_qk = identity(c.L, c.L);
    c.qt = zeros_like(c.qt);
    c.kh = zeros_like(c.kh);
    c.decay.assign(c.decay.size(), 1.0);
  });
}

TEST_P(Stage, Wy_U) {
  StageRig r = rig(StageGate::kMild);
  show_new_values(&r);
  r.for_each([](StageChunk& c) { c.state = zeros_like(c.state); });
  place_and_scan(&r);
  r.for_each([](StageChunk& c) { wy(&c); });
  r.expect_rows(
      "wy", "u", "o", [](const StageChunk& c) { return c.u; }, limit(5e-3));
}

TEST_P(Stage, Wy_W) {
  if (GetParam().shape.K != GetParam().shape.V) GTEST_SKIP() << "read off through the state I";
  StageRig r = rig(StageGate::kMild);
  show_new_values(&r);
  r.for_each([](StageChunk& c) {
    c.state = identity(c.state.rows(), c.state.cols());
    c.v = zeros_like(c.v);
  });
  place_and_scan(&r);
  r.for_each([](StageChunk& c) { wy(&c); });
  r.expect_rows(
      "wy", "w", "o", [](const StageChunk& c) { return scaled(c.w, -1.0); }, limit(5e-3));
}

// Exact factors (as stored) in, states and outputs out.
TEST_P(Stage, StateAndOutput) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    place_and_scan(&r);
    for (auto& chunks : r.heads) {
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        if (i > 0) chunks[i].state = chunks[i - 1].next_state;
        wy(&chunks[i]);
        output_and_state(&chunks[i]);
      }
    }
    r.expect_tiles(
        "state", "h", "h", [](const StageChunk& c) { return c.state; }, limit(5e-3));
    std::vector<double> got = r.get("final_state").data;
    std::vector<double> want;
    for (const auto& chunks : r.heads) {
      const Mat& last = chunks.back().next_state;
      want.insert(want.end(), last.row(0), last.row(0) + last.rows() * last.cols());
    }
    r.expect("state", "final state", got, want, limit(5e-3));
    r.expect_rows(
        "output", "o, behind the state scan", "o", [](const StageChunk& c) { return c.o; },
        limit(5e-3));
  }
}

// The output alone: the state is given, and no chunk changes it.
TEST_P(Stage, Output) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    for (auto& chunks : r.heads) {
      for (StageChunk& c : chunks) {
        c.kh = zeros_like(c.kh);
        c.decay.assign(c.decay.size(), 1.0);
        c.state = chunks.front().state;
      }
    }
    place_and_scan(&r);
    r.for_each([](StageChunk& c) {
      wy(&c);
      output_and_state(&c);
    });
    r.expect_rows(
        "output", "o", "o", [](const StageChunk& c) { return c.o; }, limit(5e-3));
  }
}

// A = I and no gradient of states: X of the reverse scan is a_qk^T do.
TEST_P(Stage, OutputBwd_LocalValues) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    r.for_each([](StageChunk& c) {
      c.t_inv = identity(c.L, c.L);
      c.kh = zeros_like(c.kh);
      c.kt = zeros_like(c.kt);
      c.qt = zeros_like(c.qt);
      c.d_state = zeros_like(c.d_state);
    });
    place_and_reverse(&r);
    r.for_each([](StageChunk& c) { output_bwd(&c); });
    r.expect_tiles(
        "output_bwd", "dv_local", "x", [](const StageChunk& c) { return c.dv_local; }, limit(5e-3));
  }
}

// Keys are unit vectors, nothing fades, there are no states: row i of dq is row i of d_a_qk.
TEST_P(Stage, OutputBwd_QueryKeyProducts) {
  if (GetParam().shape.K < 64) GTEST_SKIP() << "read off through 64 orthogonal keys";
  StageRig r = rig(StageGate::kMild);
  r.for_each([](StageChunk& c) {
    c.k = identity(c.L, c.k.cols());
    c.g_ln = zeros_like(c.g_ln);
    c.state = zeros_like(c.state);
    c.d_state = zeros_like(c.d_state);
    c.x = zeros_like(c.x);
    gate_cumsum(&c);
    intra(&c);
  });
  place_all_for_local(&r);
  r.for_each([](StageChunk& c) {
    Mat wide(c.L, c.k.cols());
    for (std::int64_t i = 0; i < c.L; ++i)
      std::copy_n(c.d_a_qk.row(i), c.L, wide.row(i));
    c.dq = wide;
  });
  r.expect_rows(
      "output_bwd", "d_a_qk", "dq", [](const StageChunk& c) { return c.dq; }, limit(5e-3));
}

TEST_P(Stage, StateBwd) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    place_and_reverse(&r);
    for (auto& chunks : r.heads) {
      for (std::size_t i = chunks.size(); i-- > 0;) {
        if (i + 1 < chunks.size()) chunks[i].d_state = chunks[i + 1].before;
        wy(&chunks[i]);
        output_bwd(&chunks[i]);
        state_bwd(&chunks[i]);
      }
    }
    r.expect_tiles(
        "state_bwd", "dh", "d_states", [](const StageChunk& c) { return c.d_state; }, limit(8e-3));
    r.expect_tiles(
        "state_bwd", "t_inv^T (dv_local + kh dh)", "x", [](const StageChunk& c) { return c.x; },
        limit(8e-3));
    std::vector<double> want;
    for (const auto& chunks : r.heads) {
      const Mat& first = chunks.front().before;
      want.insert(want.end(), first.row(0), first.row(0) + first.rows() * first.cols());
    }
    r.expect("state_bwd", "dh0", r.get("d_initial_state").data, want, limit(8e-3));
  }
}

void expect_gradients(const StageRig& r, const char* stage, double rows, double gates) {
  r.expect_rows(
      stage, "dq", "dq", [](const StageChunk& c) { return c.dq; }, rows);
  r.expect_rows(
      stage, "dk", "dk", [](const StageChunk& c) { return c.dk; }, rows);
  r.expect_rows(
      stage, "dbeta", "dbeta", [](const StageChunk& c) { return column(c.dbeta); }, gates);
  r.expect_rows(
      stage, "dg", "dg", [](const StageChunk& c) { return c.dg; }, gates);
}

// What comes from states and X alone: with A = 0 there is no v_new, so no d_a_qk and no d_a_kk.
TEST_P(Stage, WyBwd_FromStatesAndX) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    r.for_each([](StageChunk& c) { c.t_inv = zeros_like(c.t_inv); });
    place_all_for_local(&r);
    expect_gradients(r, "wy_bwd", limit(8e-3), gate_limit());
    if (r.mma()) continue;  // there the reverse scan writes dv
    r.expect_rows(
        "wy_bwd", "dv", "dv", [](const StageChunk& c) { return c.dv; }, limit(8e-3));
  }
}

// dv = beta X beside the reverse scan, and the part of dk that goes through v_new and dh: without
// do and X nothing else is left.
TEST_P(Stage, WyBwd_ThroughTheStateUpdate) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    r.for_each([](StageChunk& c) {
      c.d_o = zeros_like(c.d_o);
      c.x = zeros_like(c.x);
    });
    place_all_for_local(&r);
    r.expect_rows(
        "wy_bwd", "dk through the state", "dk", [](const StageChunk& c) { return c.dk; },
        limit(8e-3));
    r.expect_rows(
        "wy_bwd", "dg through the state", "dg", [](const StageChunk& c) { return c.dg; },
        gate_limit());
  }
}

TEST_P(Stage, WyBwd_Values) {
  StageRig r = rig(StageGate::kMild);
  if (!r.mma()) GTEST_SKIP() << "compared in FromStatesAndX";
  place_and_reverse(&r);
  const HostTensor x = r.get("x");
  for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {  // dv of the X that the scan put out
    for (std::size_t n = 0; n < r.heads[hv].size(); ++n) {
      StageChunk& c = r.heads[hv][n];
      for (std::int64_t i = 0; i < c.L; ++i) {
        for (std::int64_t j = 0; j < c.dv.cols(); ++j)
          c.dv(i, j) = c.beta[static_cast<std::size_t>(i)] * x.at(n, hv, i, j);
      }
    }
  }
  r.expect_rows(
      "wy_bwd", "dv", "dv", [](const StageChunk& c) { return c.dv; }, limit(5e-3));
}

// Without states only the products inside the chunk are left.
TEST_P(Stage, IntraBwd) {
  for (const StageGate gate : kReadyGates) {
    StageRig r = rig(gate);
    r.for_each([](StageChunk& c) {
      c.state = zeros_like(c.state);
      c.d_state = zeros_like(c.d_state);
    });
    place_all_for_local(&r);
    expect_gradients(r, "intra_bwd", limit(8e-3), gate_limit());
  }
}

// Everything that is local to a chunk, with the gate's backward in it and its parameters' sums.
TEST_P(Stage, GateBwd_BehindTheWholeLocalStage) {
  for (const StageGate gate : kAllGates) {
    StageRig r = rig(gate);
    place_all_for_local(&r);
    r.expect_rows(
        "wy_bwd + intra_bwd", "dq", "dq", [](const StageChunk& c) { return c.dq; }, limit(8e-3));
    r.expect_rows(
        "wy_bwd + intra_bwd", "dk", "dk", [](const StageChunk& c) { return c.dk; }, limit(8e-3));
    if (gate < StageGate::kBounded) continue;
    std::vector<double> bias, a_log;  // by tile, as the kernel leaves them
    const std::int64_t HV = GetParam().shape.HV;
    for (std::int64_t n = 0; n < r.num_chunks(); ++n) {
      for (std::int64_t hv = 0; hv < HV; ++hv) {
        StageChunk& c = r.heads[static_cast<std::size_t>(hv)][static_cast<std::size_t>(n)];
        double share = 0.0;
        for (std::int64_t d = 0; d < c.dg.cols(); ++d) {
          double sum = 0.0;
          for (std::int64_t i = 0; i < c.L; ++i) {
            const double z =
                r.g_raw[static_cast<std::size_t>(hv)](64 * n + i, d) + r.dt_bias(hv, d);
            const double of_ln = c.dg(i, d);
            c.dg(i, d) *= r.g_slope[static_cast<std::size_t>(hv)](64 * n + i, d);
            sum += c.dg(i, d);
            share += gate == StageGate::kBounded ? c.dg(i, d) * z : of_ln * c.g_ln(i, d);
          }
          bias.push_back(sum);
        }
        a_log.push_back(share);
      }
    }
    r.expect_rows(
        "gate_bwd", "dg", "dg", [](const StageChunk& c) { return c.dg; }, gate_limit());
    r.expect("gate_bwd", "d dt_bias of a chunk", r.get("dbias").data, bias, gate_limit());
    const HostTensor parts = r.get("da_log");
    std::vector<double> got;
    const std::size_t each = parts.data.size() / a_log.size();
    for (std::size_t i = 0; i < a_log.size(); ++i) {
      got.push_back(0.0);
      for (std::size_t p = 0; p < each; ++p)
        got.back() += parts.data[each * i + p];
    }
    r.expect("gate_bwd", "dA_log of a chunk", got, a_log, gate_limit());
  }
}

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  const StageShape& s = info.param.shape;
  return std::string(kTypes[info.param.backend]) + "_k" + std::to_string(s.K) + "_v" +
         std::to_string(s.V);
}
INSTANTIATE_TEST_SUITE_P(All, Stage, ::testing::ValuesIn(kParams), param_name);

}  // namespace
}  // namespace kda::test
