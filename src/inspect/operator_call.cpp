#include "inspect/operator_call.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <sstream>

#include "kda/error.h"

namespace kda::inspect {
namespace {

// Calls visit(name, tensor) for every defined tensor of a value; the tensor may be replaced.
template <typename Visit>
void visit_tensors(const std::string& name, c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    if (!tensor.defined()) return;
    visit(name, tensor);
    value = tensor;
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> copy;
    for (std::size_t i = 0; i < value.toTensorList().size(); ++i) {
      at::Tensor tensor = value.toTensorList().get(i);
      if (tensor.defined()) visit(name + "[" + std::to_string(i) + "]", tensor);
      copy.push_back(tensor);
    }
    value = copy;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> copy;
    for (std::size_t i = 0; i < value.toOptionalTensorList().size(); ++i) {
      std::optional<at::Tensor> tensor = value.toOptionalTensorList().get(i);
      if (tensor && tensor->defined()) visit(name + "[" + std::to_string(i) + "]", *tensor);
      copy.push_back(tensor);
    }
    value = copy;
  }
}

template <typename List>
std::string list_text(const List& list) {
  std::ostringstream text;
  text << "[";
  for (std::size_t i = 0; i < list.size(); ++i)
    text << (i > 0 ? "," : "") << list[i];
  text << "]";
  return text.str();
}

void describe(const c10::Argument& argument, const c10::IValue& value,
              std::vector<model::Attribute>& out) {
  static constexpr std::array kUninteresting{"layout", "pin_memory",   "memory_format",
                                             "device", "non_blocking", "copy"};
  const std::string& name = argument.name();
  if (std::find(kUninteresting.begin(), kUninteresting.end(), name) != kUninteresting.end()) return;
  if (value.isBool()) {
    out.push_back({name, value.toBool()});
  } else if (value.isInt()) {
    if (name == "dtype") {
      out.push_back({name, std::string(c10::toString(value.toScalarType()))});
    } else {
      out.push_back({name, value.toInt()});
    }
  } else if (value.isDouble()) {
    out.push_back({name, value.toDouble()});
  } else if (value.isString()) {
    out.push_back({name, value.toStringRef()});
  } else if (value.isIntList()) {
    out.push_back({name, list_text(value.toIntVector())});
  } else if (value.isDoubleList()) {
    out.push_back({name, list_text(value.toDoubleVector())});
  }
}

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> all;
  for (c10::IValue value : values)
    visit_tensors("", value, [&](const std::string&, const at::Tensor& t) { all.push_back(t); });
  return all;
}

Operation operation_of(const at::RecordFunction& function) {
  Operation out;
  out.function = function.name();  // "aten::mm"
  out.function = out.function.substr(out.function.rfind(':') + 1);
  const auto name = function.operator_name();
  const auto handle = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  std::vector<c10::IValue> values(function.inputs().begin(), function.inputs().end());
  if (!handle) {
    throw Error(ErrorCode::kInternal, std::string("recorder: no operator ") + function.name());
  }
  const std::vector<c10::Argument>& arguments = handle->schema().arguments();
  for (std::size_t i = 0; i < values.size() && i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    visit_tensors(arguments[i].name(), values[i],
                  [&](const std::string& argument, const at::Tensor& tensor) {
                    if (written) {
                      out.changed.push_back(static_cast<std::int64_t>(out.inputs.size()));
                    }
                    out.inputs.push_back({argument, tensor});
                  });
    describe(arguments[i], values[i], out.attributes);
  }
  out.random = handle->hasTag(at::Tag::nondeterministic_seeded);
  out.replay = [op = *handle, values](const std::vector<at::Tensor>& inputs) {
    std::vector<c10::IValue> stack = values;
    std::size_t next = 0;
    for (c10::IValue& value : stack)
      visit_tensors("", value,
                    [&](const std::string&, at::Tensor& tensor) { tensor = inputs[next++]; });
    op.callBoxed(&stack);
    return tensors_in(stack);
  };
  return out;
}

at::Tensor random_state(const std::vector<model::NamedTensor>& inputs) {
  const c10::Device device =
      inputs.empty() ? c10::Device(c10::kCPU) : inputs.front().tensor.device();
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void with_random_state(const at::Tensor& state, c10::Device device,
                       const std::function<void()>& body) {
  const auto exchange = [&](const at::Tensor& next) {
    at::Generator generator = generator_of(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const at::Tensor before = generator.get_state();
    generator.set_state(next);
    return before;
  };
  const at::Tensor own = exchange(state);
  try {
    body();
  } catch (...) {
    exchange(own);
    throw;
  }
  exchange(own);
}

bool is_uninitialised(const std::string& function) {
  return function.starts_with("empty") || function.starts_with("new_empty");
}

at::Tensor faithful_copy(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const at::Tensor source = tensor.detach();
  if (source.numel() == 0 || !source.is_cpu()) return source.clone();
  constexpr std::uintptr_t kLine = 64;
  std::int64_t extent = 1;
  for (std::int64_t d = 0; d < source.dim(); ++d)
    extent += (source.size(d) - 1) * source.stride(d);
  const auto size = static_cast<std::uintptr_t>(source.element_size());
  const auto most = static_cast<std::int64_t>(kLine / size);
  const at::Tensor memory = at::empty({extent + most}, source.options());
  const auto place = [&](const at::Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % kLine;
  };
  const std::uintptr_t ahead = (place(source) + kLine - place(memory)) % kLine;
  const auto offset = static_cast<std::int64_t>(ahead / size);
  memory.narrow(0, offset, extent).copy_(source.as_strided({extent}, {1}, source.storage_offset()));
  return memory.as_strided(source.sizes(), source.strides(), offset);
}

}  // namespace kda::inspect
