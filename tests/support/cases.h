// Named operator calls and their seeded random data.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "support/device_tensor.h"
#include "support/host_tensor.h"

namespace kda::test {

enum class GateInput : std::uint8_t {
  kReady,           // g_ln
  kStandard,        // g_raw, a_log, dt_bias
  kStandardNoBias,  // g_raw, a_log
  kSafe,            // g_raw, a_log, dt_bias, lower bound -5
  kSafeNoALog,      // g_raw, dt_bias, lower bound -5
  kSafeBare,        // g_raw, lower bound -5
};

// Values of g_ln. With a raw gate kMild means N(0,1), kBound +-30, kZero -12.
enum class Decays : std::uint8_t {
  kMild,         // log sigmoid of N(0,1)
  kZero,         // 0
  kSlow,         // -1e-3
  kBound,        // -5
  kStrong,       // about -3
  kResets,       // log sigmoid of N(0,1) / 16, and -1000 on one token in ten
  kAlternating,  // -1e-4 and -5, channel by channel
  kAllResets,    // -1000
  kMixed,        // every element one of 0, -1e-3, -1, -5, -30, -1000
  kMemory,       // -8e-5
};

enum class Keys : std::uint8_t {
  kUnit,          // independent, |q| = |k| = 1
  kIdentical,     // one unit vector + 1 % noise, |k| = 1
  kUnnormalised,  // N(0, 2/K): |k|^2 about 2
  kNormal,        // N(0, 1): |k|^2 about K; needs strong decay to have a bounded result
  kTiny,          // amplitude 1e-4, for in-kernel normalisation
  kSomeZero,      // kUnit with zero vectors on one token in five
};

enum class Betas : std::uint8_t {
  kUniform,       // U(0,1)
  kZero,          // 0
  kNearOne,       // 0.999
  kTwo,           // 2
  kLogit,         // logits N(0,1)
  kLogitHigh,     // logits 8
  kLogitDoubled,  // logits N(0,1), beta_max 2
};

struct Case {
  std::string name;  // letters, digits and '_'
  std::int64_t B = 1;
  std::int64_t T = 65;
  std::int64_t H = 1;
  std::int64_t HV = 1;
  std::int64_t K = 16;
  std::int64_t V = 16;
  std::vector<std::int64_t> cu{};  // empty = dense
  int chunk = 64;

  GateInput gate = GateInput::kReady;
  Decays decays = Decays::kMild;
  Keys keys = Keys::kUnit;
  Betas betas = Betas::kUniform;
  bool qk_l2norm = false;
  std::optional<double> scale{};

  bool initial_state = true;
  bool final_state = true;
  bool d_o = true;
  bool d_final_state = true;
  bool h_kv = false;  // written by the forward, read by the backward

  bool narrow_gate = false;     // g and beta in the io dtype instead of f32
  bool narrow_states = false;   // h_kv, too
  bool wide_gradients = false;  // dq, dk, dv, dg, dbeta in f32 (f64)
  bool cu_i32 = false;
  Layout in_layout = Layout::kContiguous;
  Layout out_layout = Layout::kContiguous;
  Layout state_layout = Layout::kContiguous;
  std::uint64_t seed = 1;

  std::int64_t N() const { return cu.empty() ? B : static_cast<std::int64_t>(cu.size()) - 1; }
  bool raw_gate() const { return gate != GateInput::kReady; }
  bool has_a_log() const {
    return raw_gate() && gate != GateInput::kSafeNoALog && gate != GateInput::kSafeBare;
  }
  bool has_dt_bias() const {
    return raw_gate() && gate != GateInput::kStandardNoBias && gate != GateInput::kSafeBare;
  }
  bool safe_gate() const { return raw_gate() && gate >= GateInput::kSafe; }
  bool beta_is_logit() const { return betas >= Betas::kLogit; }
  double beta_max() const { return betas == Betas::kLogitDoubled ? 2.0 : 1.0; }
};

// Every input of a case, rounded to what its tensor stores; absent ones are undefined.
struct CaseData {
  HostTensor q, k, v, g, a_log, dt_bias, beta, state0, d_o, d_final_state;
};

// The dtypes of a case's tensors on a backend with element type `io`.
struct CaseDTypes {
  DType io, gate_beta, params, gradient, gradient_gate_beta;
};
CaseDTypes dtypes_of(const Case& c, DType io);

CaseData make_data(const Case& c, DType io);

inline void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

// GoogleTest's name of a parameter that is a case.
struct CaseName {
  template <typename Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};

}  // namespace kda::test
