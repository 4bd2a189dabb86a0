// The stages inside the fused kernels for Hopper. Nothing of them is in memory, so inputs are
// chosen that let one quantity through: with q_t and a part of k_t orthogonal unit vectors the
// output shows v_new, with v_t = e_t it shows the inverse, with a tiny beta a_qk, without keys'
// part the decays.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/convert.h"
#include "cuda/cuda_backends.h"
#include "cuda/hopper/scan.h"
#include "cuda/stage_rig.h"
#include "kda/cuda.h"
#include "support/random.h"

namespace kda::test {
namespace {

namespace hopper = cuda::hopper;

struct Form {
  std::int64_t heads, D;
};

// v_t = e_t.
void unit_values(StageChunk* c) {
  c->v = Mat(c->L, c->v.cols());
  for (std::int64_t i = 0; i < c->L; ++i)
    c->v(i, i) = 1.0;
}

void unit_state(StageChunk* c) {
  c->state = Mat(c->state.rows(), c->state.cols());
  for (std::int64_t d = 0; d < c->state.rows(); ++d)
    c->state(d, d) = 1.0;
}

class HopperStage : public ::testing::TestWithParam<Form> {
 protected:
  static constexpr std::int64_t kStep = 16;  // tokens that the kernels take at a time

  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    const hopper::DeviceSupport support = hopper::device_support();
    if (!support.built || support.major != 9) GTEST_SKIP() << "no sm_90a device or code";
    backend_ = cuda_backends()[1];
  }
  StageRig rig(std::int64_t T) const {
    const auto [heads, D] = GetParam();
    return {backend_, {T, heads, heads, D, D}, StageGate::kBounded};
  }
  // Uploads, then replaces q and k in the model by what the kernel normalises them to.
  void place(StageRig* r) const {
    r->place_inputs();
    r->place_ends();
    r->args.in.l2norm = true;
    r->for_each([](StageChunk& c) {
      for (Mat* x : {&c.q, &c.k}) {
        for (std::int64_t i = 0; i < c.L; ++i) {
          const double rstd = 1.0 / std::sqrt(ref::dot(x->row(i), x->row(i), x->cols()) + 1e-6);
          for (std::int64_t d = 0; d < x->cols(); ++d)
            (*x)(i, d) = rounded((*x)(i, d) * rstd, DType::kBF16);
        }
      }
      gate_cumsum(&c);
      intra(&c);
      wy(&c);
    });
  }
  void run(StageRig* r) const {
    place(r);
    r->make_scan_outputs();
    hopper::launch_forward(r->args, r->stream());
  }
  // q_t a unit vector of the upper half of the channels that k_t alone has a part in.
  void read_through_queries(StageRig* r) const {
    const std::int64_t half = GetParam().D / 2;
    Random random(3);
    std::vector<double> common;
    for (std::int64_t d = 0; d < half; ++d)
      common.push_back(random.normal());
    r->for_each([&](StageChunk& c) {
      c.q = Mat(c.L, 2 * half);
      c.k = Mat(c.L, 2 * half);
      for (std::int64_t i = 0; i < c.L; ++i) {
        c.q(i, half + i) = 1.0;
        c.k(i, half + i) = 4.0;
        for (std::int64_t d = 0; d < half; ++d) {
          c.k(i, d) = rounded(common[static_cast<std::size_t>(d)] + random.normal(), DType::kBF16);
        }
      }
    });
  }
  std::string path() const {
    const auto [heads, D] = GetParam();
    return "Hopper D=" + std::to_string(D) + (D == 64 ? "" : heads > 66 ? " whole" : " half");
  }
  void expect(const char* stage, const char* quantity, const std::vector<double>& got,
              const std::vector<double>& want, double limit) const {
    expect_stage(stage, quantity, path(), "bounded", got, want, limit);
  }
  // For each head and token i of a single step: pairs(head, c, i, o) adds what to compare.
  template <typename Pairs>
  void each_row(const StageRig& r, const Pairs& pairs) const {
    const HostTensor o = r.get("o");
    for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
      const StageChunk& c = r.heads[hv][0];
      for (std::int64_t i = 0; i < c.L; ++i)
        pairs(c, i, [&](std::int64_t j) { return o.at(0, i, hv, j); });
    }
  }
  TestBackend backend_;
};

// beta = 0 and S = I: the final state is the product of the decays.
TEST_P(HopperStage, GateAndItsSum) {
  for (const std::int64_t T : {std::int64_t{1}, std::int64_t{7}, kStep}) {
    StageRig r = rig(T);
    r.for_each([](StageChunk& c) {
      c.beta.assign(c.beta.size(), 0.0);
      unit_state(&c);
    });
    run(&r);
    const HostTensor state = r.get("final_state");
    std::vector<double> got, want;
    for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
      const StageChunk& c = r.heads[hv][0];
      for (std::int64_t d = 0; d < GetParam().D; ++d) {
        got.push_back(std::log2(state.at(0, hv, d, d)));
        want.push_back(c.gcum(T - 1, d));
      }
    }
    expect(T == 1 ? "gate" : "gate_cumsum", T == 1 ? "g, log2" : "sum of tokens, log2", got, want,
           1e-4);
  }
}

// v_t = e_t, no state, beta = 2^-20: v_new is beta v, so o is beta a_qk.
TEST_P(HopperStage, QueryKeyProducts) {
  constexpr double kBeta = 0x1p-20;
  StageRig r = rig(kStep);
  r.for_each([](StageChunk& c) {
    c.beta.assign(c.beta.size(), 0x1p-20);
    c.state = Mat(c.state.rows(), c.state.cols());
    unit_values(&c);
  });
  run(&r);
  std::vector<double> got, want;
  each_row(r, [&](const StageChunk& c, std::int64_t i, const auto& o) {
    for (std::int64_t j = 0; j <= i; ++j) {
      got.push_back(o(j) / kBeta);
      want.push_back(c.a_qk(i, j));
    }
  });
  expect("intra", "a_qk", got, want, 8e-3);
}

// v_t = e_t, no state: v_new is t_inv diag(beta).
TEST_P(HopperStage, Inverse) {
  StageRig r = rig(kStep);
  read_through_queries(&r);
  r.for_each([](StageChunk& c) {
    c.state = Mat(c.state.rows(), c.state.cols());
    unit_values(&c);
  });
  run(&r);
  std::vector<double> got, want;
  each_row(r, [&](const StageChunk& c, std::int64_t i, const auto& o) {
    for (std::int64_t j = 0; j <= i; ++j) {
      got.push_back(o(j) / c.a_qk(i, i));
      want.push_back(c.t_inv(i, j) * c.beta[static_cast<std::size_t>(j)]);
    }
  });
  expect("intra", "t_inv diag(beta)", got, want, 8e-3);
}

TEST_P(HopperStage, WyU) {
  StageRig r = rig(kStep);
  read_through_queries(&r);
  r.for_each([](StageChunk& c) { c.state = Mat(c.state.rows(), c.state.cols()); });
  run(&r);
  std::vector<double> got, want;
  each_row(r, [&](const StageChunk& c, std::int64_t i, const auto& o) {
    for (std::int64_t j = 0; j < c.v.cols(); ++j) {
      got.push_back(o(j) / c.a_qk(i, i));
      want.push_back(c.u(i, j));
    }
  });
  expect("wy", "u", got, want, 8e-3);
}

// v = 0, S = I: v_new is -w; the column that q itself reads is left out.
TEST_P(HopperStage, WyW) {
  StageRig r = rig(kStep);
  read_through_queries(&r);
  r.for_each([](StageChunk& c) {
    c.v = Mat(c.L, c.v.cols());
    unit_state(&c);
  });
  run(&r);
  std::vector<double> got, want;
  each_row(r, [&](const StageChunk& c, std::int64_t i, const auto& o) {
    for (std::int64_t d = 0; d < c.v.cols(); ++d) {
      if (d == c.v.cols() / 2 + i) continue;
      got.push_back(o(d) / c.a_qk(i, i));
      want.push_back(-c.w(i, d));
    }
  });
  expect("wy", "w", got, want, 8e-3);
}

void run_model(StageRig* r) {
  for (auto& chunks : r->heads) {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i > 0) chunks[i].state = chunks[i - 1].next_state;
      output_and_state(&chunks[i]);
      output_bwd(&chunks[i]);
    }
    for (std::size_t i = chunks.size(); i-- > 0;) {
      if (i + 1 < chunks.size()) chunks[i].d_state = chunks[i + 1].before;
      state_bwd(&chunks[i]);
    }
  }
}

std::vector<double> all_of(const StageRig& r, bool first, Mat StageChunk::*mat) {
  std::vector<double> values;
  for (const auto& chunks : r.heads) {
    const Mat& m = (first ? chunks.front() : chunks.back()).*mat;
    values.insert(values.end(), m.row(0), m.row(0) + m.rows() * m.cols());
  }
  return values;
}

TEST_P(HopperStage, StateAndOutput) {
  StageRig r = rig(100);
  run(&r);
  run_model(&r);
  const HostTensor h = r.get("h");
  std::vector<double> got, want;
  for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
    for (std::size_t n = 0; n < r.heads[hv].size(); ++n) {
      const Mat& state = r.heads[hv][n].state;
      for (std::int64_t d = 0; d < state.rows(); ++d) {
        for (std::int64_t j = 0; j < state.cols(); ++j) {
          got.push_back(h.at(n, hv, d, j));
          want.push_back(state(d, j));
        }
      }
    }
  }
  expect("state", "h", got, want, 5e-3);
  expect("state", "final state", r.get("final_state").data,
         all_of(r, /*first=*/false, &StageChunk::next_state), 5e-3);
  got.clear();
  want.clear();
  const HostTensor o = r.get("o");
  for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
    for (std::size_t n = 0; n < r.heads[hv].size(); ++n) {
      const StageChunk& c = r.heads[hv][n];
      for (std::int64_t i = 0; i < c.L; ++i) {
        for (std::int64_t j = 0; j < c.o.cols(); ++j) {
          got.push_back(o.at(0, 64 * static_cast<std::int64_t>(n) + i, hv, j));
          want.push_back(c.o(i, j));
        }
      }
    }
  }
  expect("output", "o", got, want, 5e-3);
}

TEST_P(HopperStage, StateBwd) {
  StageRig r = rig(100);
  place(&r);
  r.make_reverse_outputs();
  hopper::launch_reverse(r.args, r.stream());
  run_model(&r);
  const HostTensor d_states = r.get("d_states");
  const HostTensor x = r.get("x");
  std::vector<double> got, want, got_x, want_x;
  for (std::size_t hv = 0; hv < r.heads.size(); ++hv) {
    for (std::size_t n = 0; n < r.heads[hv].size(); ++n) {
      const StageChunk& c = r.heads[hv][n];
      for (std::int64_t j = 0; j < c.d_state.cols(); ++j) {
        for (std::int64_t d = 0; d < c.d_state.rows(); ++d) {
          got.push_back(d_states.at(n, hv, d, j));
          want.push_back(c.d_state(d, j));
        }
        for (std::int64_t i = 0; i < c.L; ++i) {
          got_x.push_back(x.at(n, hv, i, j));
          want_x.push_back(c.x(i, j));
        }
      }
    }
  }
  expect("state_bwd", "dh", got, want, 8e-3);
  expect("state_bwd", "t_inv^T (dv_local + kh dh)", got_x, want_x, 8e-3);
  expect("state_bwd", "dh0", r.get("d_initial_state").data,
         all_of(r, /*first=*/true, &StageChunk::before), 8e-3);
}

std::string form_name(const ::testing::TestParamInfo<Form>& test) {
  return "d" + std::to_string(test.param.D) + "_heads" + std::to_string(test.param.heads);
}
INSTANTIATE_TEST_SUITE_P(All, HopperStage,
                         ::testing::Values(Form{2, 64}, Form{2, 128}, Form{70, 128}), form_name);

}  // namespace
}  // namespace kda::test
