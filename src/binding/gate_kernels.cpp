// kda::gate_*, kda::gate_cumsum and kda::l2norm_* on real memory, host and CUDA alike.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "binding/convert.h"
#include "kda/ops/gate.h"
#include "kda/ops/l2norm.h"

namespace kda::binding {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Gate parameters as views; `owners` keeps contiguous copies alive.
GateParams gate_params(const at::Tensor& g, const OptionalTensor& a_log,
                       const OptionalTensor& dt_bias, std::optional<double> lower_bound,
                       std::vector<at::Tensor>* owners) {
  check_device("a_log", a_log, g, "g");
  check_device("dt_bias", dt_bias, g, "g");
  GateParams params;
  if (a_log.has_value() && a_log->defined()) {
    params.a_log = input_view("a_log", owners->emplace_back(a_log->contiguous()));
  }
  if (dt_bias.has_value() && dt_bias->defined()) {
    params.dt_bias = input_view("dt_bias", owners->emplace_back(dt_bias->contiguous()));
  }
  params.lower_bound_ln = lower_bound;
  return params;
}

at::TensorOptions accumulation_options(const at::Tensor& tensor) {
  return tensor.options().dtype(accumulation_type(tensor.scalar_type()));
}

// The CUDA kernels read rows along the last dimension.
at::Tensor rows_of(const at::Tensor& tensor) {
  return tensor.is_cuda() ? tensor.contiguous() : tensor;
}

at::Tensor gate_fwd(const at::Tensor& g_raw, const OptionalTensor& a_log,
                    const OptionalTensor& dt_bias, std::optional<double> lower_bound,
                    c10::string_view backend) {
  return translating_errors([&] {
    const c10::OptionalDeviceGuard guard(g_raw.device());
    const Launch launch = make_launch(std::string(backend), g_raw);
    std::vector<at::Tensor> owners;
    owners.reserve(3);
    GateForwardParams params;
    params.g_raw = input_view("g_raw", owners.emplace_back(rows_of(g_raw)));
    params.gate = gate_params(g_raw, a_log, dt_bias, lower_bound, &owners);
    at::Tensor g_ln = at::empty(g_raw.sizes(), accumulation_options(g_raw));
    params.g_ln = output_view("g_ln", g_ln);
    gate_forward(params, launch.context);
    return g_ln;
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gate_bwd(
    const at::Tensor& g_raw, const OptionalTensor& a_log, const OptionalTensor& dt_bias,
    const at::Tensor& dg_ln, std::optional<double> lower_bound, c10::string_view backend,
    std::array<bool, 3> wanted) {
  return translating_errors([&] {
    const c10::OptionalDeviceGuard guard(g_raw.device());
    Launch launch = make_launch(std::string(backend), g_raw);
    std::vector<at::Tensor> owners;
    owners.reserve(4);
    GateBackwardParams params;
    params.g_raw = input_view("g_raw", owners.emplace_back(rows_of(g_raw)));
    params.gate = gate_params(g_raw, a_log, dt_bias, lower_bound, &owners);
    check_device("dg_ln", dg_ln, g_raw, "g");
    params.dg_ln = input_view("dg_ln", owners.emplace_back(rows_of(dg_ln)));
    const auto gradient = [&](bool given, const at::Tensor& of) {
      return given ? at::empty(of.sizes(), of.options()) : at::empty({0}, g_raw.options());
    };
    const bool want_a = wanted[1] && a_log.has_value() && a_log->defined();
    const bool want_bias = wanted[2] && dt_bias.has_value() && dt_bias->defined();
    at::Tensor dg_raw = gradient(wanted[0], g_raw);
    at::Tensor da_log = gradient(want_a, want_a ? *a_log : g_raw);
    at::Tensor d_dt_bias = gradient(want_bias, want_bias ? *dt_bias : g_raw);
    if (wanted[0]) params.dg_raw = output_view("dg_raw", dg_raw);
    if (want_a) params.da_log = output_view("da_log", da_log);
    if (want_bias) params.d_dt_bias = output_view("d_dt_bias", d_dt_bias);
    if (wants_workspace(g_raw)) {
      reserve_workspace(&launch, g_raw, gate_backward_workspace_bytes(params, launch.context));
    }
    gate_backward(params, launch.context);
    return std::make_tuple(dg_raw, da_log, d_dt_bias);
  });
}

at::Tensor gate_cumsum(const at::Tensor& g, const OptionalTensor& a_log,
                       const OptionalTensor& dt_bias, const OptionalTensor& cu_seqlens,
                       bool raw_gate, std::int64_t chunk, std::optional<double> lower_bound,
                       c10::string_view backend) {
  return translating_errors([&] {
    const c10::OptionalDeviceGuard guard(g.device());
    const Launch launch = make_launch(std::string(backend), g);
    std::vector<at::Tensor> owners;
    owners.reserve(3);
    GateCumsumForwardParams params;
    (raw_gate ? params.g_raw : params.g_ln) = input_view("g", owners.emplace_back(rows_of(g)));
    params.gate = gate_params(g, a_log, dt_bias, lower_bound, &owners);
    check_offsets_device(cu_seqlens, g, "g");
    if (cu_seqlens.has_value()) params.cu_seqlens = input_view("cu_seqlens", *cu_seqlens);
    params.chunk = chunk_of(chunk);
    at::Tensor gcum_log2 = at::empty(g.sizes(), accumulation_options(g));
    params.gcum_log2 = output_view("gcum_log2", gcum_log2);
    gate_cumsum_forward(params, launch.context);
    return gcum_log2;
  });
}

std::tuple<at::Tensor, at::Tensor> l2norm_fwd(const at::Tensor& x, double eps,
                                              c10::string_view backend) {
  return translating_errors([&] {
    const c10::OptionalDeviceGuard guard(x.device());
    const Launch launch = make_launch(std::string(backend), x);
    const at::Tensor rows = rows_of(x);
    L2NormForwardParams params;
    params.x = input_view("x", rows);
    params.eps = eps;
    at::Tensor y = at::empty(x.sizes(), x.options());
    params.y = output_view("y", y);
    at::Tensor rstd;
    if (x.dim() == 4) {  // other ranks are refused by name below
      rstd = at::empty({x.size(0), x.size(1), x.size(2)}, accumulation_options(x));
      params.rstd = output_view("rstd", rstd);
    }
    l2norm_forward(params, launch.context);
    return std::make_tuple(y, rstd);
  });
}

at::Tensor l2norm_bwd(const at::Tensor& x, const at::Tensor& dy, double eps,
                      c10::string_view backend) {
  return translating_errors([&] {
    const c10::OptionalDeviceGuard guard(x.device());
    const Launch launch = make_launch(std::string(backend), x);
    check_device("dy", dy, x, "x");
    const at::Tensor x_rows = rows_of(x);
    const at::Tensor dy_rows = rows_of(dy);
    L2NormBackwardParams params;
    params.x = input_view("x", x_rows);
    params.dy = input_view("dy", dy_rows);
    params.eps = eps;
    at::Tensor dx = at::empty(x.sizes(), x.options());
    params.dx = output_view("dx", dx);
    l2norm_backward(params, launch.context);
    return dx;
  });
}

void register_all(torch::Library& m) {
  m.impl("gate_fwd", gate_fwd);
  m.impl("gate_bwd", gate_bwd);
  m.impl("gate_cumsum", gate_cumsum);
  m.impl("l2norm_fwd", l2norm_fwd);
  m.impl("l2norm_bwd", l2norm_bwd);
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(kda, CUDA, m) { register_all(m); }

}  // namespace kda::binding
