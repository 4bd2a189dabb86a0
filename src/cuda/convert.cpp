#include "cuda/convert.h"

#include <cstdint>

namespace kda::cuda {

Elem elem_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return Elem::kBF16;
    case DType::kF16:
      return Elem::kF16;
    case DType::kI32:
      return Elem::kI32;
    case DType::kI64:
      return Elem::kI64;
    default:
      return Elem::kF32;
  }
}

Tensor to_tensor(const ConstTensorView& view) {
  Tensor t;
  if (!view.defined()) return t;
  t.data = const_cast<void*>(view.data);  // inputs are only read
  t.elem = elem_of(view.dtype);
  std::int64_t* strides[] = {&t.s0, &t.s1, &t.s2, &t.s3};
  for (int i = 0; i < view.rank && i < 4; ++i) {
    *strides[i] = view.stride[static_cast<std::size_t>(i)];
  }
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  t.vector = view.rank == 4 && view.stride[3] == 1 &&
             reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (view.shape[i] > 1 && view.stride[i] * bytes % 16 != 0) t.vector = false;
  }
  return t;
}

Tensor to_tensor(const TensorView& view) { return to_tensor(ConstTensorView(view)); }

Shape to_shape(const core::Problem& problem) {
  const Dims& d = problem.dims;
  Shape s;
  s.B = d.B;
  s.T = d.T;
  s.N = d.N;
  s.H = static_cast<int>(d.H);
  s.HV = static_cast<int>(d.HV);
  s.G = d.H > 0 ? static_cast<int>(d.HV / d.H) : 1;
  s.K = static_cast<int>(d.K);
  s.V = static_cast<int>(d.V);
  return s;
}

Gate to_gate(const GateParams& params, bool raw) {
  Gate gate;
  if (!raw) return gate;
  gate.kind = params.lower_bound_ln.has_value() ? GateKind::kBounded : GateKind::kStandard;
  gate.a_log = static_cast<const float*>(params.a_log.data);
  gate.dt_bias = static_cast<const float*>(params.dt_bias.data);
  gate.lower_bound = static_cast<float>(params.lower_bound_ln.value_or(0.0));
  return gate;
}

PackedOffsets packed_offsets(const OperatorInputs& in, const core::Problem& problem) {
  PackedOffsets from;
  if (problem.offsets_on_device) {
    from.device = to_tensor(in.cu_seqlens);
  } else {
    from.host = problem.offsets.data();
  }
  return from;
}

Inputs to_inputs(const OperatorInputs& in, const core::Problem& problem) {
  Inputs out;
  out.q = to_tensor(in.q);
  out.k = to_tensor(in.k);
  out.v = to_tensor(in.v);
  out.g = to_tensor(problem.raw_gate ? in.g_raw : in.g_ln);
  out.beta = to_tensor(problem.beta_is_logit ? in.beta_logit : in.beta);
  out.gate = to_gate(in.gate, problem.raw_gate);
  out.beta_is_logit = problem.beta_is_logit;
  out.beta_max = static_cast<float>(in.beta_max);
  out.l2norm = in.qk_l2norm;
  out.scale = static_cast<float>(problem.scale);
  out.initial_state = to_tensor(in.initial_state_kv);
  return out;
}

}  // namespace kda::cuda
