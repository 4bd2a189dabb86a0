/// The places where a tracer can look at a forward pass: modules, and functions of the model that
/// are one operation to a reader though they run many torch operators, or none (fused kernels).
///
///   at::Tensor y = in_module("mlp", [&] { return feed(x); });
///   return observed("short_conv", run, arg("x", x), arg("weight", weight));
///
/// Without a recorder both are a test of one thread-local pointer and the call itself: no argument
/// is copied and no name is built. Results are the same with a recorder, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kda::model {

/// An argument that is no tensor.
struct Attribute {
  std::string name;
  std::variant<bool, std::int64_t, double, std::string> value;
};

/// A tensor among the arguments; undefined ones are left out.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// One call of a function, before it runs.
struct FunctionCall {
  const char* function = nullptr;
  std::vector<NamedTensor> inputs;
  std::vector<Attribute> attributes;
  std::string changed;  ///< name of the input that it writes; "" = none
  /// The same call with other tensors in the places of `inputs`.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> again;
};

/// What a tracer implements. Calls come in pairs, properly nested, from one thread.
class CallRecorder {
 public:
  virtual ~CallRecorder() = default;
  virtual void enter_module(std::string name) = 0;
  virtual void leave_module(const std::vector<at::Tensor>& outputs) = 0;
  virtual void begin_call(FunctionCall call) = 0;
  virtual void end_call(const std::vector<at::Tensor>& outputs) = 0;
};

/// Who records on this thread; null: nobody.
inline constinit thread_local CallRecorder* call_recorder = nullptr;

/// How the tensors and other members of a type are found. A type of its own brings
///   template <typename Visit> static void tensors(T& value, Visit&& visit);  // visit(name,
///   tensor) static void attributes(const T& value, const char* name, std::vector<Attribute>& out);
/// and may leave the second out.
template <typename T>
struct ObservedParts {
  template <typename Visit>
  static void tensors(T&, Visit&&) {}
  static void attributes(const T& value, const char* name, std::vector<Attribute>& out) {
    if constexpr (std::is_same_v<T, bool>) {
      out.push_back({name, value});
    } else if constexpr (std::is_integral_v<T>) {
      out.push_back({name, static_cast<std::int64_t>(value)});
    } else if constexpr (std::is_floating_point_v<T>) {
      out.push_back({name, static_cast<double>(value)});
    } else if constexpr (std::is_enum_v<T>) {
      out.push_back({name, std::string(name_of(value))});
    }
  }
};

template <>
struct ObservedParts<at::Tensor> {
  template <typename Visit>
  static void tensors(at::Tensor& value, Visit&& visit) {
    if (value.defined()) visit("", value);
  }
};

template <>
struct ObservedParts<std::optional<at::Tensor>> {
  template <typename Visit>
  static void tensors(std::optional<at::Tensor>& value, Visit&& visit) {
    if (value && value->defined()) visit("", *value);
  }
};

template <>
struct ObservedParts<std::vector<at::Tensor>> {
  template <typename Visit>
  static void tensors(std::vector<at::Tensor>& value, Visit&& visit) {
    for (std::size_t i = 0; i < value.size(); ++i)
      if (value[i].defined()) visit("[" + std::to_string(i) + "]", value[i]);
  }
};

template <typename... Parts>
struct ObservedParts<std::tuple<Parts...>> {
  template <typename Visit>
  static void tensors(std::tuple<Parts...>& value, Visit&& visit) {
    std::apply([&](Parts&... part) { (ObservedParts<Parts>::tensors(part, visit), ...); }, value);
  }
};

/// An argument and its name.
template <typename T>
struct Arg {
  const char* name;
  const T& value;
};
template <typename T>
Arg<T> arg(const char* name, const T& value) {
  return {name, value};
}

namespace observe_detail {

// What outlives the call: a list of tensors is copied.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, at::TensorList>, std::vector<at::Tensor>, T>;

template <typename T>
Stored<T> stored(const T& value) {
  if constexpr (std::is_same_v<T, at::TensorList>) {
    return value.vec();
  } else {
    return value;
  }
}

template <typename T>
std::vector<at::Tensor> tensors_of(T value) {
  std::vector<at::Tensor> all;
  ObservedParts<T>::tensors(
      value, [&](const std::string&, const at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

template <typename T>
void describe(const Arg<T>& argument, FunctionCall& call) {
  using Own = Stored<T>;
  Own copy = stored(argument.value);
  ObservedParts<Own>::tensors(copy, [&](const std::string& part, const at::Tensor& tensor) {
    // "[0]" of a list goes behind its name, a struct's members have their own.
    const bool member = !part.empty() && part.front() != '[';
    call.inputs.push_back({member ? part : argument.name + part, tensor});
  });
  if constexpr (requires(std::vector<Attribute> out) {
                  ObservedParts<Own>::attributes(copy, argument.name, out);
                }) {
    ObservedParts<Own>::attributes(copy, argument.name, call.attributes);
  }
}

template <typename Function, typename... Args>
[[gnu::noinline]] auto record(const char* name, const char* changed, Function function,
                              const Arg<Args>&... args) {
  FunctionCall call;
  call.function = name;
  call.changed = changed;
  (describe(args, call), ...);
  call.again = [function, all = std::tuple<Stored<Args>...>(stored(args.value)...)](
                   const std::vector<at::Tensor>& inputs) {
    auto copy = all;
    std::size_t next = 0;
    const auto replace = [&](const std::string&, at::Tensor& tensor) { tensor = inputs[next++]; };
    return std::apply(
        [&](auto&... value) {
          (ObservedParts<std::remove_reference_t<decltype(value)>>::tensors(value, replace), ...);
          return tensors_of(function(value...));
        },
        copy);
  };
  call_recorder->begin_call(std::move(call));
  auto result = function(args.value...);
  call_recorder->end_call(tensors_of(result));
  return result;
}

template <typename Body>
[[gnu::noinline]] auto record_module(std::string name, Body& body) {
  call_recorder->enter_module(std::move(name));
  auto result = body();
  call_recorder->leave_module(tensors_of(result));
  return result;
}

}  // namespace observe_detail

/// function(args...), shown to the recorder as one call of `name`. `function` keeps no reference to
/// this call and depends on its arguments only: the recorder may run it again. It may write to the
/// one tensor argument that `changed` names.
template <typename Function, typename... Args>
auto observed_change(const char* name, const char* changed, Function function,
                     const Arg<Args>&... args) {
  if (call_recorder == nullptr) [[likely]]
    return function(args.value...);
  return observe_detail::record(name, changed, function, args...);
}

template <typename Function, typename... Args>
auto observed(const char* name, Function function, const Arg<Args>&... args) {
  return observed_change(name, "", function, args...);
}

/// body(), whose operations belong to the module `name`, or `name`.`index`, inside the current one.
template <typename Body>
auto in_module(const char* name, Body&& body) {
  if (call_recorder == nullptr) [[likely]]
    return body();
  return observe_detail::record_module(name, body);
}
template <typename Body>
auto in_module(const char* name, std::int64_t index, Body&& body) {
  if (call_recorder == nullptr) [[likely]]
    return body();
  return observe_detail::record_module(name + ("." + std::to_string(index)), body);
}

}  // namespace kda::model
