#include "binding/convert.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

namespace kda::binding {
namespace {

[[noreturn]] void fail_argument(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool is_index(std::string_view name) {
  return name == "cu_seqlens" || name == "slots" || name == "num_accepted";
}

DType dtype_of(const char* name, at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Double:
      return DType::kF64;
    case at::ScalarType::Float:
      return DType::kF32;
    case at::ScalarType::BFloat16:
      return DType::kBF16;
    case at::ScalarType::Half:
      return DType::kF16;
    case at::ScalarType::Long:
      return DType::kI64;
    case at::ScalarType::Int:
      return DType::kI32;
    default:
      fail_argument(std::string(name) + ": expected dtype " +
                    (is_index(name) ? "i32 or i64" : "f64 or f32 or bf16 or f16") + ", given " +
                    c10::toString(type));
  }
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (d > 0) text += ",";
    text += std::to_string(tensor.size(d));
  }
  return text + "]";
}

template <typename View, typename Pointer>
View make_view(const char* name, const at::Tensor& tensor, Pointer data) {
  if (tensor.dim() < 1 || tensor.dim() > kMaxRank) {
    fail_argument(std::string(name) + ": expected 1 to " + std::to_string(kMaxRank) +
                  " dimensions, given " + shape_text(tensor));
  }
  View view;
  view.data = data;
  view.dtype = dtype_of(name, tensor.scalar_type());
  view.space = tensor.is_cuda() ? MemorySpace::kCuda : MemorySpace::kHost;
  view.rank = static_cast<int>(tensor.dim());
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    view.shape[static_cast<std::size_t>(d)] = tensor.size(d);
    view.stride[static_cast<std::size_t>(d)] = tensor.stride(d);
  }
  return view;
}

// The CUDA kernels read rows along the last dimension.
at::Tensor with_dense_rows(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.dim() == 0) return tensor;
  return tensor.stride(-1) == 1 || tensor.size(-1) <= 1 ? tensor : tensor.contiguous();
}

std::string named_shape(const KdaArguments& a, bool v_first) {
  const auto k = "K=" + std::to_string(a.q.size(3));
  const auto v = "V=" + std::to_string(a.v.size(3));
  return "[N=" + std::to_string(num_sequences(a)) + ",HV=" + std::to_string(a.v.size(2)) + "," +
         (v_first ? v + "," + k : k + "," + v) + "]";
}

// Errors of transposed states in the caller's order; the kv case is left to the library's checks.
void check_v_first(const char* name, const at::Tensor& tensor, const KdaArguments& a) {
  if (a.q.dim() != 4 || a.v.dim() != 4) return;  // refused later, by name
  const bool right = tensor.dim() == 4 && tensor.size(0) == num_sequences(a) &&
                     tensor.size(1) == a.v.size(2) && tensor.size(2) == a.v.size(3) &&
                     tensor.size(3) == a.q.size(3);
  if (right) return;
  fail_argument(std::string(name) + ": expected " + named_shape(a, true) +
                " (state_v_first), given " + shape_text(tensor));
}

}  // namespace

void check_device(const char* name, const std::optional<at::Tensor>& tensor, const at::Tensor& like,
                  const char* like_name) {
  if (!tensor.has_value() || !tensor->defined() || tensor->device() == like.device()) return;
  fail_argument(std::string(name) + ": expected on " + like.device().str() + " like " + like_name +
                ", given on " + tensor->device().str());
}

void check_offsets_device(const std::optional<at::Tensor>& cu_seqlens, const at::Tensor& like,
                          const char* like_name) {
  if (!cu_seqlens.has_value() || cu_seqlens->device().is_cpu()) return;
  check_device("cu_seqlens", cu_seqlens, like, like_name);
}

int chunk_of(std::int64_t chunk) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp(chunk, -kLargest, kLargest));
}

void throw_as_torch_error(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      C10_THROW_ERROR(ValueError, error.what());
    case ErrorCode::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, error.what());
    case ErrorCode::kOutOfMemory:
      C10_THROW_ERROR(OutOfMemoryError, error.what());
    default:
      C10_THROW_ERROR(Error, std::string(name_of(error.code())) + ": " + error.what());
  }
}

ConstTensorView input_view(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return make_view<ConstTensorView>(name, tensor, tensor.const_data_ptr());
}

TensorView output_view(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return make_view<TensorView>(name, tensor, tensor.mutable_data_ptr());
}

at::ScalarType accumulation_type(at::ScalarType io) {
  return io == at::ScalarType::Double ? at::ScalarType::Double : at::ScalarType::Float;
}

at::ScalarType checkpoint_dtype(const at::Tensor& q) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return q.is_cuda() && half ? at::kBFloat16 : accumulation_type(q.scalar_type());
}

std::int64_t num_sequences(const KdaArguments& a) {
  if (!a.cu_seqlens.has_value()) return a.q.size(0);
  return std::max<std::int64_t>(a.cu_seqlens->numel() - 1, 0);
}

ConstTensorView state_input(const char* name, const at::Tensor& tensor, const KdaArguments& a) {
  if (a.state_v_first) check_v_first(name, tensor, a);
  const ConstTensorView view = input_view(name, tensor);
  return a.state_v_first && view.rank == 4 ? view.transposed(2, 3) : view;
}

TensorView state_output(const char* name, const at::Tensor& tensor, const KdaArguments& a) {
  const TensorView view = output_view(name, tensor);
  return a.state_v_first && view.rank == 4 ? view.transposed(2, 3) : view;
}

Inputs make_inputs(const KdaArguments& a, bool recurrent) {
  check_device("k", a.k, a.q);
  check_device("v", a.v, a.q);
  check_device("g", a.g, a.q);
  check_device("beta", a.beta, a.q);
  check_device("a_log", a.a_log, a.q);
  check_device("dt_bias", a.dt_bias, a.q);
  check_device("initial_state", a.initial_state, a.q);
  check_offsets_device(a.cu_seqlens, a.q);

  Inputs inputs;
  const auto keep = [&](const at::Tensor& tensor) -> const at::Tensor& {
    inputs.owners.push_back(with_dense_rows(tensor));
    return inputs.owners.back();
  };
  OperatorInputs& in = inputs.in;
  in.q = input_view("q", keep(a.q));
  in.k = input_view("k", keep(a.k));
  in.v = input_view("v", keep(a.v));
  (a.raw_gate ? in.g_raw : in.g_ln) = input_view("g", keep(a.g));

  const bool per_value = recurrent && a.beta.dim() == 4;
  if (per_value) {
    if (a.beta_is_logit) {
      fail_argument("beta: per value channel ([B,T,HV,V]) it must be the step size, not a logit");
    }
    inputs.beta_v = input_view("beta_v", a.beta);
  } else {
    (a.beta_is_logit ? in.beta_logit : in.beta) = input_view("beta", a.beta);
  }
  in.beta_max = a.beta_max;
  if (a.a_log.has_value()) in.gate.a_log = input_view("a_log", keep(a.a_log->contiguous()));
  if (a.dt_bias.has_value()) in.gate.dt_bias = input_view("dt_bias", keep(a.dt_bias->contiguous()));
  in.gate.lower_bound_ln = a.lower_bound;
  in.qk_l2norm = a.qk_l2norm;
  in.scale = a.scale;
  if (a.initial_state.has_value()) {
    in.initial_state_kv = state_input("initial_state", *a.initial_state, a);
  }
  if (a.cu_seqlens.has_value()) in.cu_seqlens = input_view("cu_seqlens", *a.cu_seqlens);
  return inputs;
}

bool wants_workspace(const at::Tensor& on) { return on.is_cuda(); }

Launch make_launch(const std::string& backend, const at::Tensor& on) {
  Launch launch;
  launch.context.backend = backend_from_name(backend);
  if (!on.is_cuda()) return launch;
  const std::vector<Backend> present = available_backends();
  if (std::find(present.begin(), present.end(), Backend::kCuda) == present.end()) {
    throw Error(ErrorCode::kUnsupported,
                "the CUDA backend is not built or not loaded: the tensors are on " +
                    on.device().str() +
                    ", but libkda_torch_cuda.so was not loaded into this process (build it with "
                    "-DKDA_CUDA=ON, or move the tensors to the cpu)");
  }
  const c10::impl::VirtualGuardImpl device(on.device().type());
  launch.context.stream = device.getStream(on.device()).native_handle();
  return launch;
}

void reserve_workspace(Launch* launch, const at::Tensor& on, std::size_t bytes) {
  if (bytes == 0) return;
  launch->workspace =
      at::empty({static_cast<std::int64_t>(bytes)}, on.options().dtype(at::ScalarType::Byte));
  launch->context.workspace = {launch->workspace.mutable_data_ptr(), bytes};
}

}  // namespace kda::binding
