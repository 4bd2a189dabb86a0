#include "cuda/stage_rig.h"

#include <algorithm>
#include <cmath>

#include "cuda/convert.h"
#include "cuda/launch/launch.h"
#include "support/random.h"

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 64;
constexpr double kLowerBound = -5.0;

Mat rounded_mat(Mat m, DType dtype) {
  for (std::int64_t i = 0; i < m.rows(); ++i) {
    for (std::int64_t j = 0; j < m.cols(); ++j)
      m(i, j) = rounded(m(i, j), dtype);
  }
  return m;
}

Mat normal(Random* random, std::int64_t num_rows, std::int64_t num_cols, double factor) {
  Mat m(num_rows, num_cols);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    for (std::int64_t j = 0; j < num_cols; ++j)
      m(i, j) = factor * random->normal();
  }
  return m;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double ready_decay(StageGate gate, Random* random) {
  switch (gate) {
    case StageGate::kStrong:
      return -5.0 + random->uniform(-1.0, 1.0);
    case StageGate::kSlow:
      return -1e-3 * random->uniform();
    default:
      return -std::log1p(std::exp(-random->normal()));
  }
}

}  // namespace

const char* name_of(StageGate gate) {
  constexpr const char* kNames[] = {"mild", "strong", "slow", "bounded", "standard"};
  return kNames[static_cast<std::size_t>(gate)];
}

StageRig::StageRig(const TestBackend& backend, const StageShape& shape, StageGate gate)
    : backend_(backend), shape_(shape), gate_(gate) {
  const auto& [T, H, HV, K, V] = shape;
  const DType io = backend.io;
  const bool raw = gate >= StageGate::kBounded;
  Random random(17);
  std::vector<Mat> q, k;
  for (std::int64_t h = 0; h < H; ++h) {  // |q|, |k| about 1
    const double size = 1.0 / std::sqrt(static_cast<double>(K));
    q.push_back(rounded_mat(normal(&random, T, K, size), io));
    k.push_back(rounded_mat(normal(&random, T, K, size), io));
  }
  dt_bias = rounded_mat(normal(&random, HV, K, 0.5), DType::kF32);
  a_log = rounded_mat(normal(&random, HV, 1, 0.3), DType::kF32);
  for (std::int64_t hv = 0; hv < HV; ++hv) {
    ref::HeadInputs<double> head;
    head.q = q[static_cast<std::size_t>(hv / (HV / H))];
    head.k = k[static_cast<std::size_t>(hv / (HV / H))];
    head.v = rounded_mat(normal(&random, T, V, 1.0), io);
    head.g_ln = Mat(T, K);
    head.beta = Mat(T, 1);
    Mat slope(T, K), x(T, K);
    const double rate = std::exp(a_log(hv, 0));
    for (std::int64_t t = 0; t < T; ++t) {
      head.beta(t, 0) = rounded(random.uniform(), DType::kF32);
      for (std::int64_t d = 0; d < K; ++d) {
        slope(t, d) = 1.0;
        if (!raw) {
          head.g_ln(t, d) = rounded(ready_decay(gate, &random), DType::kF32);
          continue;
        }
        x(t, d) = rounded(random.normal() - 1.0, io);
        const double z = x(t, d) + dt_bias(hv, d);
        if (gate == StageGate::kBounded) {
          const double s = sigmoid(rate * z);
          head.g_ln(t, d) = kLowerBound * s;
          slope(t, d) = kLowerBound * s * (1.0 - s) * rate;
        } else {
          head.g_ln(t, d) = -rate * std::log1p(std::exp(z));
          slope(t, d) = -rate * sigmoid(z);
        }
      }
    }
    head.state0 = rounded_mat(normal(&random, K, V, 0.5), DType::kF32);
    head.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(K)));
    const Mat d_o = rounded_mat(normal(&random, T, V, 1.0), io);
    const Mat d_final = rounded_mat(normal(&random, K, V, 0.5), DType::kF32);
    heads.push_back(run_all_stages(head, d_o, d_final));
    g_slope.push_back(slope);
    g_raw.push_back(x);
  }
  args.shape = {1,
                T,
                1,
                static_cast<int>(H),
                static_cast<int>(HV),
                static_cast<int>(HV / H),
                static_cast<int>(K),
                static_cast<int>(V)};
  args.map.num_chunks = args.map.per_row = num_chunks();
  args.map.T = T;
  args.in.scale = static_cast<float>(heads[0][0].scale);
}

std::string StageRig::path() const {
  return std::string(kda::name_of(backend_.io)) + " K=" + std::to_string(shape_.K) +
         " V=" + std::to_string(shape_.V);
}

void StageRig::for_each(const std::function<void(StageChunk&)>& change) {
  for (auto& chunks : heads) {
    for (StageChunk& c : chunks)
      change(c);
  }
}

HostTensor StageRig::tiles(std::int64_t num_rows, std::int64_t num_cols,
                           const Values& value) const {
  HostTensor t({num_chunks(), shape_.HV, num_rows, num_cols});
  for (std::int64_t c = 0; c < num_chunks(); ++c) {
    for (std::int64_t hv = 0; hv < shape_.HV; ++hv) {
      const StageChunk& chunk = heads[static_cast<std::size_t>(hv)][static_cast<std::size_t>(c)];
      for (std::int64_t i = 0; i < num_rows; ++i) {
        for (std::int64_t j = 0; j < num_cols; ++j)
          t.at(c, hv, i, j) = value(chunk, i, j);
      }
    }
  }
  return t;
}

HostTensor StageRig::rows(std::int64_t num_heads, std::int64_t num_cols,
                          const Values& value) const {
  HostTensor t({1, shape_.T, num_heads, num_cols});
  const std::int64_t group = shape_.HV / num_heads;
  for (std::int64_t at = 0; at < shape_.T; ++at) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const auto& chunks = heads[static_cast<std::size_t>(h * group)];
      const StageChunk& chunk = chunks[static_cast<std::size_t>(at / kTokens)];
      for (std::int64_t j = 0; j < num_cols; ++j)
        t.at(0, at, h, j) = value(chunk, at % kTokens, j);
    }
  }
  return t;
}

cuda::Tensor StageRig::out(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
  DeviceTensor& buffer = buffers_[name];
  buffer = DeviceTensor(*backend_.memory, dtype, std::move(shape), Layout::kContiguous);
  return cuda::to_tensor(buffer.view());
}

cuda::Tensor StageRig::put(const std::string& name, DType dtype, const HostTensor& values) {
  const cuda::Tensor tensor = out(name, dtype, values.shape);
  buffers_[name].upload(values);
  return tensor;
}

void StageRig::put_mats(const std::string& name, DType dtype, Mat StageChunk::*mat,
                        std::int64_t num_rows, std::int64_t num_cols, cuda::Tensor* to) {
  for_each([&](StageChunk& c) { c.*mat = rounded_mat(c.*mat, dtype); });
  *to = put(name, dtype, tiles(num_rows, num_cols, [&](const StageChunk& c, auto i, auto j) {
              const Mat& m = c.*mat;
              return i < m.rows() && j < m.cols() ? m(i, j) : 0.0;
            }));
}

void StageRig::place_inputs() {
  const auto place = [&](const char* name, Mat StageChunk::*mat, std::int64_t num_heads,
                         std::int64_t cols, DType dtype) {
    return put(name, dtype, rows(num_heads, cols, [&](const StageChunk& c, auto i, auto j) {
                 return (c.*mat)(i, j);
               }));
  };
  const DType io = backend_.io;
  cuda::Inputs& in = args.in;
  in.q = place("q", &StageChunk::q, shape_.H, shape_.K, io);
  in.k = place("k", &StageChunk::k, shape_.H, shape_.K, io);
  in.v = place("v", &StageChunk::v, shape_.HV, shape_.V, io);
  args.d_o = place("d_o", &StageChunk::d_o, shape_.HV, shape_.V, io);
  in.beta = put("beta", DType::kF32, rows(shape_.HV, 1, [](const StageChunk& c, auto i, auto) {
                  return c.beta[static_cast<std::size_t>(i)];
                }));
  if (gate_ < StageGate::kBounded) {
    in.g = place("g", &StageChunk::g_ln, shape_.HV, shape_.K, DType::kF32);
    return;
  }
  HostTensor x({1, shape_.T, shape_.HV, shape_.K});
  HostTensor bias({shape_.HV, shape_.K});
  HostTensor rate({shape_.HV});
  for (std::int64_t hv = 0; hv < shape_.HV; ++hv) {
    rate.at(hv) = a_log(hv, 0);
    for (std::int64_t d = 0; d < shape_.K; ++d) {
      bias.at(hv, d) = dt_bias(hv, d);
      for (std::int64_t t = 0; t < shape_.T; ++t)
        x.at(0, t, hv, d) = g_raw[static_cast<std::size_t>(hv)](t, d);
    }
  }
  in.g = put("g", io, x);
  in.gate.kind =
      gate_ == StageGate::kBounded ? cuda::GateKind::kBounded : cuda::GateKind::kStandard;
  in.gate.lower_bound = gate_ == StageGate::kBounded ? static_cast<float>(kLowerBound) : 0.0F;
  in.gate.a_log = static_cast<const float*>(put("a_log", DType::kF32, rate).data);
  in.gate.dt_bias = static_cast<const float*>(put("dt_bias", DType::kF32, bias).data);
}

void StageRig::place_factors() {
  const DType type = factor_type();
  cuda::Tensor t;
  const auto place = [&](const char* name, Mat StageChunk::*mat, std::int64_t cols) {
    put_mats(name, type, mat, kTokens, cols, &t);
    return t.data;
  };
  cuda::Factors& f = args.factors;
  f.kt = place("kt", &StageChunk::kt, shape_.K);
  f.kh = place("kh", &StageChunk::kh, shape_.K);
  f.qt = place("qt", &StageChunk::qt, shape_.K);
  f.n = place("n", &StageChunk::a_qk, kTokens);
  f.a = place("a", &StageChunk::t_inv, kTokens);
  for_each([](StageChunk& c) {
    for (double& x : c.decay)
      x = rounded(x, DType::kF32);
  });
  f.decay = static_cast<float*>(put("decay", DType::kF32,
                                    tiles(1, shape_.K,
                                          [](const StageChunk& c, auto, auto d) {
                                            return c.decay[static_cast<std::size_t>(d)];
                                          }))
                                    .data);
  f.beta =
      static_cast<float*>(put("tile_beta", DType::kF32,
                              tiles(1, kTokens,
                                    [](const StageChunk& c, auto, auto i) {
                                      return i < c.L ? c.beta[static_cast<std::size_t>(i)] : 0.0;
                                    }))
                              .data);
}

void StageRig::place_states() {
  put_mats("h", factor_type(), &StageChunk::state, shape_.K, shape_.V, &args.h);
}

void StageRig::place_d_states() {
  put_mats("d_states", factor_type(), &StageChunk::d_state, shape_.K, shape_.V, &args.d_states);
}

void StageRig::place_x() {
  put_mats("x", factor_type(), &StageChunk::x, kTokens, shape_.V, &args.x);
}

void StageRig::place_ends() {
  HostTensor first({1, shape_.HV, shape_.K, shape_.V});
  HostTensor last = first;
  for (std::int64_t hv = 0; hv < shape_.HV; ++hv) {
    const auto& chunks = heads[static_cast<std::size_t>(hv)];
    for (std::int64_t d = 0; d < shape_.K; ++d) {
      for (std::int64_t j = 0; j < shape_.V; ++j) {
        first.at(0, hv, d, j) = chunks.front().state(d, j);
        last.at(0, hv, d, j) = chunks.back().d_state(d, j);
      }
    }
  }
  args.in.initial_state = put("initial_state", DType::kF32, first);
  args.d_final_state = put("d_final_state", DType::kF32, last);
}

void StageRig::make_factor_outputs() {
  const DType type = factor_type();
  const auto make = [&](const char* name, DType dtype, std::int64_t num_rows, std::int64_t cols) {
    return out(name, dtype, {num_chunks(), shape_.HV, num_rows, cols}).data;
  };
  cuda::Factors& f = args.factors;
  f.kt = make("kt", type, kTokens, shape_.K);
  f.kh = make("kh", type, kTokens, shape_.K);
  f.qt = make("qt", type, kTokens, shape_.K);
  f.n = make("n", type, kTokens, kTokens);
  f.a = make("a", type, kTokens, kTokens);
  f.decay = static_cast<float*>(make("decay", DType::kF32, 1, shape_.K));
  f.beta = static_cast<float*>(make("tile_beta", DType::kF32, 1, kTokens));
}

void StageRig::make_scan_outputs() {
  args.o = out("o", backend_.io, {1, shape_.T, shape_.HV, shape_.V});
  args.h = out("h", factor_type(), {num_chunks(), shape_.HV, shape_.K, shape_.V});
  args.final_state = out("final_state", DType::kF32, {1, shape_.HV, shape_.K, shape_.V});
}

void StageRig::make_reverse_outputs() {
  args.x = out("x", factor_type(), {num_chunks(), shape_.HV, kTokens, shape_.V});
  args.d_states = out("d_states", factor_type(), {num_chunks(), shape_.HV, shape_.K, shape_.V});
  args.d_initial_state = out("d_initial_state", DType::kF32, {1, shape_.HV, shape_.K, shape_.V});
  args.dv = out("dv", backend_.io, {1, shape_.T, shape_.HV, shape_.V});
}

void StageRig::make_local_outputs() {
  const auto floats = [&](const char* name, std::vector<std::int64_t> shape) {
    return static_cast<float*>(out(name, DType::kF32, std::move(shape)).data);
  };
  const auto& [T, H, HV, K, V] = shape_;
  args.dq_part = floats("dq", {1, T, HV, K});
  args.dk_part = floats("dk", {1, T, HV, K});
  // A raw gate's gradient has the type of the tensors: the kernels of plain rows want that.
  args.dg = out("dg", gate_ < StageGate::kBounded ? DType::kF32 : backend_.io, {1, T, HV, K});
  args.dbeta = out("dbeta", DType::kF32, {1, T, HV});
  const std::int64_t parts = mma() ? 1 : (K + 31) / 32;
  args.beta_parts = args.a_parts = static_cast<int>(parts);
  args.dbias_part = floats("dbias", {num_chunks(), HV, 1, K});
  args.da_log_part = floats("da_log", {num_chunks(), HV, 1, parts});
  if (mma()) return;
  args.dbeta_part = floats("dbeta_part", {parts, T, HV});
  args.u = floats("u", {num_chunks(), HV, kTokens, V});
  args.d_n = floats("d_n", {num_chunks(), HV, kTokens, kTokens});
  args.p = floats("p", {num_chunks(), HV, kTokens, kTokens});
  args.dv = out("dv", backend_.io, {1, T, HV, V});
}

void StageRig::prep() {
  mma() ? cuda::launch_prep_mma(args, stream()) : cuda::launch_prep_simt(args, stream());
}

void StageRig::scan_forward() {
  mma() ? cuda::launch_scan_fwd_mma(args, /*output=*/true, stream())
        : cuda::launch_scan_fwd_simt(args, /*output=*/true, stream());
}

void StageRig::scan_reverse() {
  mma() ? cuda::launch_scan_rev_mma(args, stream()) : cuda::launch_scan_rev_simt(args, stream());
}

void StageRig::local() {
  if (mma()) return cuda::launch_local_mma(args, stream());
  cuda::launch_local_simt(args, stream());
  cuda::launch_value_bwd(args, stream());
}

void StageRig::expect(const char* stage, const char* quantity, const std::vector<double>& got,
                      const std::vector<double>& want, double limit) const {
  expect_stage(stage, quantity, path(), name_of(gate_), got, want, limit);
}

void StageRig::expect_tiles(const char* stage, const char* quantity, const std::string& name,
                            const Of& of, double limit, bool lower) const {
  const HostTensor all = get(name);
  std::vector<double> got, want;
  for (std::int64_t c = 0; c < num_chunks(); ++c) {
    for (std::int64_t hv = 0; hv < shape_.HV; ++hv) {
      const Mat m = of(heads[static_cast<std::size_t>(hv)][static_cast<std::size_t>(c)]);
      for (std::int64_t i = 0; i < m.rows(); ++i) {
        for (std::int64_t j = 0; j < (lower ? i + 1 : m.cols()); ++j) {
          got.push_back(all.at(c, hv, i, j));
          want.push_back(m(i, j));
        }
      }
    }
  }
  expect(stage, quantity, got, want, limit);
}

void StageRig::expect_rows(const char* stage, const char* quantity, const std::string& name,
                           const Of& of, double limit) const {
  const HostTensor all = get(name);
  std::vector<double> got, want;
  for (std::int64_t hv = 0; hv < shape_.HV; ++hv) {
    std::int64_t first = 0;
    for (const StageChunk& chunk : heads[static_cast<std::size_t>(hv)]) {
      const Mat m = of(chunk);
      for (std::int64_t i = 0; i < m.rows(); ++i) {
        for (std::int64_t j = 0; j < m.cols(); ++j) {
          const std::int64_t row = (first + i) * shape_.HV + hv;
          got.push_back(all.data[static_cast<std::size_t>(row * m.cols() + j)]);
          want.push_back(m(i, j));
        }
      }
      first += m.rows();
    }
  }
  expect(stage, quantity, got, want, limit);
}

}  // namespace kda::test
