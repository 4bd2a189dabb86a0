#include "binding/widen.h"

#include <c10/core/ScalarType.h>

#include <array>

#include "binding/convert.h"

namespace kda::binding {
namespace {

// bf16 and f16 fit into f32, everything into f64; bf16 and f16 do not fit into each other.
bool fits(at::ScalarType from, at::ScalarType into) {
  return c10::isFloatingType(from) && c10::promoteTypes(from, into) == into;
}

at::Tensor widened_to(const at::Tensor& tensor, at::ScalarType wide) {
  if (tensor.scalar_type() == wide || !fits(tensor.scalar_type(), wide)) return tensor;
  return tensor.to(wide);
}

}  // namespace

std::optional<at::Tensor> widened_a_log(const std::optional<at::Tensor>& a_log,
                                        const c10::SymInt& value_heads, at::ScalarType wide) {
  if (!a_log.has_value() || !a_log->defined()) return std::nullopt;
  at::Tensor flat = *a_log;
  if (flat.dim() != 1 && flat.sym_numel() == value_heads) {
    flat = flat.reshape_symint(std::array<c10::SymInt, 1>{value_heads});
  }
  return widened_to(flat, wide);
}

std::optional<at::Tensor> widened_dt_bias(const std::optional<at::Tensor>& dt_bias,
                                          const c10::SymInt& value_heads,
                                          const c10::SymInt& key_dim, at::ScalarType wide) {
  if (!dt_bias.has_value() || !dt_bias->defined()) return std::nullopt;
  at::Tensor matrix = *dt_bias;
  if (matrix.dim() != 2 && matrix.sym_numel() == value_heads * key_dim) {
    matrix = matrix.reshape_symint(std::array<c10::SymInt, 2>{value_heads, key_dim});
  }
  return widened_to(matrix, wide);
}

OutputNormArguments widened(OutputNormArguments norm, const at::Tensor& q) {
  const at::ScalarType io = q.scalar_type();
  const at::ScalarType wide = accumulation_type(io);
  if (norm.weight.has_value()) norm.weight = widened_to(*norm.weight, wide);
  if (norm.gate.has_value() && norm.gate->scalar_type() != io) {
    norm.gate = widened_to(*norm.gate, wide);
  }
  return norm;
}

KdaArguments widened(KdaArguments a) {
  if (a.q.dim() != 4 || a.v.dim() != 4) return a;  // refused by the kernels, by name
  const at::ScalarType io = a.q.scalar_type();
  const at::ScalarType wide = accumulation_type(io);
  if (a.g.scalar_type() != io) a.g = widened_to(a.g, wide);
  if (a.beta.scalar_type() != io) a.beta = widened_to(a.beta, wide);
  a.a_log = widened_a_log(a.a_log, a.v.sym_size(2), wide);
  a.dt_bias = widened_dt_bias(a.dt_bias, a.v.sym_size(2), a.q.sym_size(3), wide);
  if (a.initial_state.has_value()) a.initial_state = widened_to(*a.initial_state, wide);
  return a;
}

KdaArguments promoted(KdaArguments a) {
  const at::ScalarType widest =
      c10::promoteTypes(a.q.scalar_type(), c10::promoteTypes(a.k.scalar_type(), a.v.scalar_type()));
  a.q = widened_to(a.q, widest);
  a.k = widened_to(a.k, widest);
  a.v = widened_to(a.v, widest);
  return widened(std::move(a));
}

}  // namespace kda::binding
