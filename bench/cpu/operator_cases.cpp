#include "bench/cpu/operator_cases.h"

#include <cmath>
#include <cstdint>
#include <random>

#include "core/float16.h"

namespace kda::bench {
namespace {

std::size_t product(std::initializer_list<std::int64_t> extents) {
  std::size_t n = 1;
  for (std::int64_t e : extents)
    n *= static_cast<std::size_t>(e);
  return n;
}

// A tensor in the timed dtype, with the f64 image of its rounded values for the oracle.
struct Tensor {
  std::vector<std::int64_t> shape;
  DType dtype = DType::kF32;
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;

  void* data() {
    return dtype == DType::kF32 ? static_cast<void*>(f32.data()) : static_cast<void*>(bf16.data());
  }
  std::size_t numel() const { return dtype == DType::kF32 ? f32.size() : bf16.size(); }
  double bytes() const { return static_cast<double>(numel() * size_of(dtype)); }
  double at(std::size_t i) const {
    return static_cast<double>(dtype == DType::kF32 ? f32[i] : core::bf16_to_float(bf16[i]));
  }
  std::vector<double> f64() const {
    std::vector<double> out(numel());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = at(i);
    return out;
  }
};

Tensor make(DType dtype, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  Tensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  if (dtype == DType::kF32) {
    t.f32 = values;
  } else {
    for (float x : values)
      t.bf16.push_back(core::float_to_bf16(x));
  }
  return t;
}

TensorView view(Tensor& t) {
  TensorView v;
  v.data = t.data();
  v.dtype = t.dtype;
  v.rank = static_cast<int>(t.shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = t.shape.size(); d-- > 0;) {
    v.shape[d] = t.shape[d];
    v.stride[d] = stride;
    stride *= t.shape[d];
  }
  return v;
}

TensorView view(std::vector<double>& values, const TensorView& like) {
  TensorView v = like;
  v.data = values.data();
  v.dtype = DType::kF64;
  return v;
}

std::vector<float> normal(std::size_t n, std::mt19937* rng) {
  std::normal_distribution<float> draw;
  std::vector<float> x(n);
  for (float& value : x)
    value = draw(*rng);
  return x;
}

// q and k with unit rows, g = log sigmoid(N(0,1)), beta = sigmoid(N(0,1)).
struct Inputs {
  Shape s;
  Tensor q, k, v, g, beta, h0;

  Inputs(const Shape& shape, DType dtype, std::mt19937* rng) : s(shape) {
    q = make(dtype, {s.B, s.T, s.H, s.K}, unit_rows(product({s.B, s.T, s.H, s.K}), rng));
    k = make(dtype, {s.B, s.T, s.H, s.K}, unit_rows(product({s.B, s.T, s.H, s.K}), rng));
    v = make(dtype, {s.B, s.T, s.HV, s.V}, normal(product({s.B, s.T, s.HV, s.V}), rng));
    std::vector<float> decay = normal(product({s.B, s.T, s.HV, s.K}), rng);
    for (float& x : decay)
      x = -std::log1p(std::exp(-x));
    g = make(DType::kF32, {s.B, s.T, s.HV, s.K}, decay);
    std::vector<float> step = normal(product({s.B, s.T, s.HV}), rng);
    for (float& x : step)
      x = 1.0F / (1.0F + std::exp(-x));
    beta = make(DType::kF32, {s.B, s.T, s.HV}, step);
    h0 = make(DType::kF32, {s.B, s.HV, s.K, s.V}, normal(product({s.B, s.HV, s.K, s.V}), rng));
  }
  OperatorInputs views() {
    OperatorInputs in;
    in.q = view(q);
    in.k = view(k);
    in.v = view(v);
    in.g_ln = view(g);
    in.beta = view(beta);
    in.initial_state_kv = view(h0);
    return in;
  }
  double bytes() const {
    return q.bytes() + k.bytes() + v.bytes() + g.bytes() + beta.bytes() + h0.bytes();
  }
  double token_heads() const { return static_cast<double>(s.B * s.T * s.HV); }

 private:
  std::vector<float> unit_rows(std::size_t n, std::mt19937* rng) const {
    std::vector<float> x = normal(n, rng);
    const auto width = static_cast<std::size_t>(s.K);
    for (std::size_t row = 0; row < n; row += width) {
      float sum = 0.0F;
      for (std::size_t d = 0; d < width; ++d)
        sum += x[row + d] * x[row + d];
      for (std::size_t d = 0; d < width; ++d)
        x[row + d] /= std::sqrt(sum);
    }
    return x;
  }
};

// The same inputs in f64, for the oracle.
struct OracleInputs {
  std::vector<double> q, k, v, g, beta, h0;
  OperatorInputs in;

  explicit OracleInputs(Inputs& x)
      : q(x.q.f64()), k(x.k.f64()), v(x.v.f64()), g(x.g.f64()), beta(x.beta.f64()), h0(x.h0.f64()) {
    in.q = view(q, view(x.q));
    in.k = view(k, view(x.k));
    in.v = view(v, view(x.v));
    in.g_ln = view(g, view(x.g));
    in.beta = view(beta, view(x.beta));
    in.initial_state_kv = view(h0, view(x.h0));
  }
};

double relative_rms(const Tensor& got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = got.at(i) - want[i];
    error += difference * difference;
    norm += want[i] * want[i];
  }
  return std::sqrt(error / (norm + 1e-300));
}

Context on(Backend backend) {
  Context context;
  context.backend = backend;
  return context;
}

// The oracle is slow: errors are measured on the first sequence's shape with few tokens.
Shape small(const Shape& s) {
  return {s.name, 1, std::min<std::int64_t>(s.T, 150), s.H, s.HV, s.K, s.V};
}

Tensor zeros(DType dtype, std::vector<std::int64_t> shape) {
  std::size_t n = 1;
  for (std::int64_t e : shape)
    n *= static_cast<std::size_t>(e);
  return make(dtype, std::move(shape), std::vector<float>(n, 0.0F));
}

class Forward : public Case {
 public:
  Forward(const Shape& shape, DType dtype, bool check_only = false)
      : rng_(7), dtype_(dtype), inputs_(shape, dtype, &rng_), check_only_(check_only) {
    const Shape& s = inputs_.s;
    o_ = zeros(dtype, {s.B, s.T, s.HV, s.V});
    state_ = zeros(DType::kF32, {s.B, s.HV, s.K, s.V});
    params_.in = inputs_.views();
    params_.o = view(o_);
    params_.final_state_kv = view(state_);
  }
  void run() override { chunk_forward(params_, on(Backend::kCpu)); }
  std::string op() const override { return "chunk_forward"; }
  // 6 K V for the state's three products and 8 C (K + V) / 2 inside chunks of C = 16.
  double flops() const override {
    const auto k = static_cast<double>(inputs_.s.K);
    const auto v = static_cast<double>(inputs_.s.V);
    return inputs_.token_heads() * (6.0 * k * v + 4.0 * 16.0 * (k + v));
  }
  double bytes() const override { return inputs_.bytes() + o_.bytes() + state_.bytes(); }
  double error() override {
    if (!check_only_) return Forward(small(inputs_.s), dtype_, true).error();
    run();
    OracleInputs oracle(inputs_);
    std::vector<double> o(o_.numel());
    std::vector<double> state(state_.numel());
    ChunkForwardParams p;
    p.in = oracle.in;
    p.o = view(o, params_.o);
    p.final_state_kv = view(state, params_.final_state_kv);
    chunk_forward(p, on(Backend::kRef));
    return std::max(relative_rms(o_, o), relative_rms(state_, state));
  }

 private:
  std::mt19937 rng_;
  DType dtype_;
  Inputs inputs_;
  bool check_only_;
  Tensor o_, state_;
  ChunkForwardParams params_;
};

class TrainingStep : public Case {
 public:
  TrainingStep(const Shape& shape, DType dtype, bool check_only = false)
      : rng_(7), dtype_(dtype), inputs_(shape, dtype, &rng_), check_only_(check_only) {
    const Shape& s = inputs_.s;
    o_ = zeros(dtype, {s.B, s.T, s.HV, s.V});
    d_o_ = make(dtype, {s.B, s.T, s.HV, s.V}, normal(product({s.B, s.T, s.HV, s.V}), &rng_));
    dq_ = zeros(dtype, inputs_.q.shape);
    dk_ = zeros(dtype, inputs_.k.shape);
    dv_ = zeros(dtype, inputs_.v.shape);
    dg_ = zeros(DType::kF32, inputs_.g.shape);
    dbeta_ = zeros(DType::kF32, inputs_.beta.shape);
    dh0_ = zeros(DType::kF32, inputs_.h0.shape);
    forward_.in = inputs_.views();
    const std::int64_t blocks = num_state_blocks(forward_.in);
    h_ = zeros(DType::kF32, {blocks, s.HV, s.K, s.V});
    forward_.o = view(o_);
    forward_.h_kv = view(h_);
    backward_ = gradients();
    backward_.in = forward_.in;
    backward_.h_kv = view(h_);
    backward_.d_o = view(d_o_);
  }
  void run() override {
    chunk_forward(forward_, on(Backend::kCpu));
    chunk_backward(backward_, on(Backend::kCpu));
  }
  std::string op() const override { return "chunk_forward+backward"; }
  // Forward as above; backward 16 K V (replay included) and 22 C (K + V) / 2, C = 16.
  double flops() const override {
    const auto k = static_cast<double>(inputs_.s.K);
    const auto v = static_cast<double>(inputs_.s.V);
    return inputs_.token_heads() * (22.0 * k * v + 15.0 * 16.0 * (k + v));
  }
  double bytes() const override {
    return 2.0 * inputs_.bytes() + 2.0 * h_.bytes() + o_.bytes() + d_o_.bytes() + dq_.bytes() +
           dk_.bytes() + dv_.bytes() + dg_.bytes() + dbeta_.bytes() + dh0_.bytes();
  }
  double error() override {
    if (!check_only_) return TrainingStep(small(inputs_.s), dtype_, true).error();
    run();
    OracleInputs oracle(inputs_);
    std::vector<double> d_o = d_o_.f64();
    std::vector<double> dq(dq_.numel()), dk(dk_.numel()), dv(dv_.numel()), dg(dg_.numel()),
        dbeta(dbeta_.numel()), dh0(dh0_.numel());
    ChunkBackwardParams p;
    p.in = oracle.in;
    p.d_o = view(d_o, view(d_o_));
    p.dq = view(dq, backward_.dq);
    p.dk = view(dk, backward_.dk);
    p.dv = view(dv, backward_.dv);
    p.dg = view(dg, backward_.dg);
    p.dbeta = view(dbeta, backward_.dbeta);
    p.d_initial_state_kv = view(dh0, backward_.d_initial_state_kv);
    chunk_backward(p, on(Backend::kRef));
    double worst = 0.0;
    worst = std::max(worst, relative_rms(dq_, dq));
    worst = std::max(worst, relative_rms(dk_, dk));
    worst = std::max(worst, relative_rms(dv_, dv));
    worst = std::max(worst, relative_rms(dg_, dg));
    worst = std::max(worst, relative_rms(dbeta_, dbeta));
    return std::max(worst, relative_rms(dh0_, dh0));
  }

 private:
  ChunkBackwardParams gradients() {
    ChunkBackwardParams p;
    p.dq = view(dq_);
    p.dk = view(dk_);
    p.dv = view(dv_);
    p.dg = view(dg_);
    p.dbeta = view(dbeta_);
    p.d_initial_state_kv = view(dh0_);
    return p;
  }
  std::mt19937 rng_;
  DType dtype_;
  Inputs inputs_;
  bool check_only_;
  Tensor o_, h_, d_o_, dq_, dk_, dv_, dg_, dbeta_, dh0_;
  ChunkForwardParams forward_;
  ChunkBackwardParams backward_;
};

class Decode : public Case {
 public:
  Decode(const Shape& shape, DType dtype) : rng_(7), inputs_(shape, dtype, &rng_) {
    const Shape& s = inputs_.s;
    o_ = zeros(dtype, {s.B, s.T, s.HV, s.V});
    for (std::int64_t n = 0; n < s.B; ++n)
      slots_.push_back(n);
    params_.in = inputs_.views();
    params_.in.initial_state_kv = {};
    params_.pool.pool_kv = view(inputs_.h0);
    params_.pool.slots = view_of(slots_.data(), {s.B});
    params_.o = view(o_);
  }
  void run() override { recurrent_forward(params_, on(Backend::kCpu)); }
  std::string op() const override { return "decode"; }
  // Decay, S^T k, the rank-one update and S^T q: 7 K V.
  double flops() const override {
    return inputs_.token_heads() * 7.0 * static_cast<double>(inputs_.s.K * inputs_.s.V);
  }
  double bytes() const override { return 2.0 * inputs_.h0.bytes(); }
  std::size_t state_floats() const override { return inputs_.h0.numel(); }
  // Of the first call only: later ones start from the states that it left.
  double error() override {
    OracleInputs oracle(inputs_);
    std::vector<double> o(o_.numel());
    std::vector<double> state(inputs_.h0.numel());
    RecurrentForwardParams p;
    p.in = oracle.in;
    p.o = view(o, params_.o);
    p.final_state_kv = view(state, params_.pool.pool_kv);
    recurrent_forward(p, on(Backend::kRef));
    run();
    return std::max(relative_rms(o_, o), relative_rms(inputs_.h0, state));
  }

 private:
  std::mt19937 rng_;
  Inputs inputs_;
  Tensor o_;
  std::vector<std::int64_t> slots_;
  RecurrentForwardParams params_;
};

}  // namespace

std::unique_ptr<Case> make_forward(const Shape& shape, DType dtype) {
  return std::make_unique<Forward>(shape, dtype);
}
std::unique_ptr<Case> make_training_step(const Shape& shape, DType dtype) {
  return std::make_unique<TrainingStep>(shape, dtype);
}
std::unique_ptr<Case> make_decode(const Shape& shape, DType dtype) {
  return std::make_unique<Decode>(shape, dtype);
}

}  // namespace kda::bench
