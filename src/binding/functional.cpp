#include "binding/functional.h"

#include <c10/util/Exception.h>

#include <type_traits>

#include "binding/operators.h"
#include "binding/stack.h"
#include "binding/widen.h"
#include "kda/error.h"

namespace kda::binding {
namespace {

// The kernels throw what Python understands; C++ callers get the library's own exception.
template <typename Function>
auto with_library_errors(Function&& function) -> std::invoke_result_t<Function> {
  try {
    return function();
  } catch (const c10::ValueError& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    throw Error(ErrorCode::kUnsupported, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorCode::kOutOfMemory, error.what_without_backtrace());
  }
}

std::tuple<at::Tensor, std::optional<at::Tensor>> with_optional_state(const KdaArguments& arguments,
                                                                      at::Tensor o,
                                                                      at::Tensor final_state) {
  if (!arguments.output_final_state) return {std::move(o), std::nullopt};
  return {std::move(o), std::move(final_state)};
}

}  // namespace

std::tuple<at::Tensor, std::optional<at::Tensor>> chunk_kda(const KdaArguments& arguments) {
  return with_library_errors([&] {
    auto result = operators::chunk_fwd(widened(arguments), std::nullopt);
    return with_optional_state(arguments, std::move(result.o), std::move(result.final_state));
  });
}

std::tuple<at::Tensor, std::optional<at::Tensor>> recurrent_kda(const KdaArguments& arguments,
                                                                const OutputNormArguments& norm) {
  return with_library_errors([&] {
    auto [o, final_state] =
        operators::recurrent_fwd(widened(arguments), widened(norm, arguments.q));
    return with_optional_state(arguments, std::move(o), std::move(final_state));
  });
}

at::Tensor recurrent_kda_pool(const KdaArguments& arguments, const PoolArguments& pool,
                              const OutputNormArguments& norm) {
  return with_library_errors([&] {
    return operators::recurrent_pool(widened(arguments), pool, widened(norm, arguments.q));
  });
}

at::Tensor gate(const at::Tensor& g_raw, const std::optional<at::Tensor>& a_log,
                const std::optional<at::Tensor>& dt_bias, std::optional<double> lower_bound) {
  using Gate =
      at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&,
                 const std::optional<at::Tensor>&, std::optional<double>, c10::string_view);
  static const auto op = find_operator("gate").typed<Gate>();
  return with_library_errors([&] { return op.call(g_raw, a_log, dt_bias, lower_bound, "auto"); });
}

at::Tensor l2norm(const at::Tensor& x, double eps) {
  using L2Norm = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double, c10::string_view);
  static const auto op = find_operator("l2norm_fwd").typed<L2Norm>();
  return with_library_errors([&] { return std::get<0>(op.call(x, eps, "auto")); });
}

}  // namespace kda::binding
