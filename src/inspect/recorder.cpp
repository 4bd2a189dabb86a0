#include "inspect/recorder.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <chrono>

#include "inspect/flops.h"
#include "inspect/operator_call.h"
#include "kda/error.h"

namespace kda::inspect {
namespace {

thread_local Recorder* active_recorder = nullptr;

// A range that torch announces around operators (a step of autograd's engine): it is not one.
struct Range : at::ObserverContext {};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// The bytes of the storage between a tensor's first and last element.
std::pair<std::int64_t, std::int64_t> bytes_of(const at::Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t begin = tensor.storage_offset() * size;
  if (tensor.numel() == 0) return {begin, begin};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + (last + 1) * size};
}

void wait_for(const at::Tensor& tensor) {
  c10::impl::getDeviceGuardImpl(tensor.device().type())->synchronizeDevice(tensor.device().index());
}

}  // namespace

Recorder::Recorder(bool statistics) : statistics_(statistics) {}

Recorder::~Recorder() {
  if (!recording_) return;  // else an exception is on its way
  error_ = nullptr;
  end_phase();
}

void Recorder::name_parameter(const std::string& name, const at::Tensor& tensor) {
  alive_.push_back(tensor);
  parameters_.emplace(tensor.unsafeGetTensorImpl(), name);
}

void Recorder::name_input(const at::Tensor& tensor) {
  Node node;
  node.function = "input";
  node.kind = NodeKind::kInput;
  node.phase = std::max<std::int64_t>(0, static_cast<std::int64_t>(graph_.phases.size()) - 1);
  node.outputs.push_back({TensorForm::of(tensor), -1, tensor, ""});
  const auto index = static_cast<std::int64_t>(graph_.nodes.size());
  graph_.nodes.push_back(std::move(node));
  producers_[tensor.unsafeGetTensorImpl()] = {index, 0};
  alive_.push_back(tensor);
  register_values(index);
}

void Recorder::name_result(const std::string& name, const at::Tensor& tensor) {
  const OutputRef from = find(tensor);
  if (from.node >= 0) graph_.results.push_back({name, from});
}

OutputRef Recorder::find(const at::Tensor& tensor) const {
  const auto found = producers_.find(tensor.unsafeGetTensorImpl());
  return found == producers_.end() ? OutputRef{-1, 0} : found->second;
}

void Recorder::begin_phase(std::string kind, std::int64_t first_token, std::int64_t num_tokens) {
  if (recording_ || model::call_recorder != nullptr) {
    throw Error(ErrorCode::kInternal, "recorder: a phase is being recorded already");
  }
  const auto begin = static_cast<std::int64_t>(graph_.nodes.size());
  graph_.phases.push_back({std::move(kind), first_token, num_tokens, begin, begin});
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  recording_ = true;
  depth_ = 0;
  open_ = -1;
  path_.clear();
  model::call_recorder = this;
  active_recorder = this;
}

void Recorder::end_phase() {
  at::removeCallback(callback_);
  model::call_recorder = nullptr;
  active_recorder = nullptr;
  recording_ = false;
  graph_.phases.back().last_node = static_cast<std::int64_t>(graph_.nodes.size());
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Recorder::adopt_thread() { active_recorder = this; }

std::int64_t Recorder::node_of_gradient(const void* function) const {
  const auto found = gradient_nodes_.find(function);
  return found == gradient_nodes_.end() ? -1 : found->second;
}

Graph Recorder::finish() {
  Graph graph = std::exchange(graph_, {});
  producers_.clear();
  writes_.clear();
  slots_.clear();
  gradient_nodes_.clear();
  alive_.clear();
  prune(graph);
  label_nodes(graph);
  return graph;
}

void Recorder::enter_module(std::string name) {
  const std::string parent = path_.empty() ? "" : path_.back();
  path_.push_back(parent.empty() ? std::move(name) : parent + "." + name);
  auto found = std::find_if(graph_.modules.begin(), graph_.modules.end(),
                            [&](const Module& module) { return module.path == path_.back(); });
  if (found == graph_.modules.end()) {
    graph_.modules.push_back({path_.back(), parent, 0, {}});
    found = graph_.modules.end() - 1;
  }
  ++found->calls;
}

void Recorder::leave_module(const std::vector<at::Tensor>& outputs) {
  for (Module& module : graph_.modules) {
    if (module.path != path_.back()) continue;
    module.outputs.clear();
    for (const at::Tensor& tensor : outputs) {
      const OutputRef from = find(tensor);
      if (from.node >= 0) module.outputs.push_back(from);
    }
  }
  path_.pop_back();
}

void Recorder::begin_call(model::FunctionCall call) {
  Operation operation;
  operation.function = call.function;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].name == call.changed)
      operation.changed.push_back(static_cast<std::int64_t>(i));
  }
  operation.inputs = std::move(call.inputs);
  operation.attributes = std::move(call.attributes);
  operation.replay = std::move(call.again);
  begin_operation(std::move(operation));
}

void Recorder::end_call(const std::vector<at::Tensor>& outputs) { end_operation(outputs); }

std::unique_ptr<at::ObserverContext> Recorder::on_start(const at::RecordFunction& function) {
  Recorder* recorder = active_recorder;
  if (recorder == nullptr) return nullptr;
  if (!function.operator_name()) return std::make_unique<Range>();
  try {
    recorder->begin_operator(function);
  } catch (...) {
    recorder->remember_error();
  }
  return nullptr;
}

void Recorder::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  Recorder* recorder = active_recorder;
  if (recorder == nullptr || context != nullptr) return;
  try {
    recorder->end_operation(tensors_in(function.outputs()));
  } catch (...) {
    recorder->remember_error();
  }
}

void Recorder::remember_error() {
  if (!error_) error_ = std::current_exception();
}

void Recorder::begin_operator(const at::RecordFunction& function) {
  if (depth_ > 0) {  // inside: its name is enough
    Operation inner;
    inner.function = function.name();
    begin_operation(std::move(inner));
    return;
  }
  begin_operation(operation_of(function));
}

// The producer of a tensor, and who has written to its memory since. What nobody made is a
// constant.
NodeInput Recorder::resolve(const std::string& argument, const at::Tensor& tensor) {
  NodeInput input;
  input.argument = argument;
  input.form = TensorForm::of(tensor);
  input.value = tensor;
  alive_.push_back(tensor);
  if (const auto named = parameters_.find(tensor.unsafeGetTensorImpl());
      named != parameters_.end()) {
    input.parameter = named->second;
    return input;
  }
  OutputRef from = find(tensor);
  if (from.node < 0) {
    Node constant;
    constant.function = "constant";
    constant.kind = NodeKind::kConstant;
    constant.phase = static_cast<std::int64_t>(graph_.phases.size()) - 1;
    constant.module = path_.empty() ? "" : path_.back();
    constant.outputs.push_back({input.form, -1, tensor, ""});
    from = {static_cast<std::int64_t>(graph_.nodes.size()), 0};
    graph_.nodes.push_back(std::move(constant));
    producers_[tensor.unsafeGetTensorImpl()] = from;
    register_values(from.node);
  }
  input.node = from.node;
  input.output = from.output;
  const auto [begin, end] = bytes_of(tensor);
  if (const auto writes = writes_.find(storage_of(tensor)); writes != writes_.end()) {
    for (const Write& write : writes->second) {
      if (write.node > from.node && write.begin < end && begin < write.end)
        input.writers.push_back(write.node);
    }
  }
  return input;
}

void Recorder::begin_operation(Operation operation) {
  ++depth_;
  if (depth_ > 1) {
    if (open_ >= 0 && depth_ == 2) {  // what those call in turn is torch's business
      graph_.nodes[static_cast<std::size_t>(open_)].calls.push_back(std::move(operation.function));
    }
    return;
  }
  const at::DisableRecordFunctionGuard unseen;
  const c10::NoGradGuard no_grad;
  Node node;
  node.function = std::move(operation.function);
  node.kind = operation.kind;
  node.phase = static_cast<std::int64_t>(graph_.phases.size()) - 1;
  node.module = path_.empty() ? "" : path_.back();
  if (operation.gradient_of >= 0) {
    node.module = graph_.nodes[static_cast<std::size_t>(operation.gradient_of)].module;
  }
  node.attributes = std::move(operation.attributes);
  node.changed = std::move(operation.changed);
  node.random = operation.random;
  node.replay = std::move(operation.replay);
  node.gradient_of = operation.gradient_of;
  sync_ = false;
  for (const model::NamedTensor& named : operation.inputs) {
    node.inputs.push_back(resolve(named.name, named.tensor));
    if (!named.tensor.is_cpu()) {
      sync_ = true;
      wait_for(named.tensor);
    }
  }
  for (const std::int64_t changed : node.changed) {
    const at::Tensor target = operation.inputs[static_cast<std::size_t>(changed)].tensor;
    keep_before_write(target);
    for (NodeInput& input : node.inputs) {
      if (storage_of(input.value) == storage_of(target)) input.value = faithful_copy(input.value);
    }
  }
  if (node.random) node.random_state = random_state(operation.inputs);
  open_ = static_cast<std::int64_t>(graph_.nodes.size());
  graph_.nodes.push_back(std::move(node));
  started_ns_ = now_ns();
}

void Recorder::end_operation(const std::vector<at::Tensor>& outputs) {
  --depth_;
  if (depth_ > 0 || open_ < 0) return;
  const at::DisableRecordFunctionGuard unseen;
  const c10::NoGradGuard no_grad;
  if (sync_) {
    for (const at::Tensor& tensor : outputs)
      if (!tensor.is_cpu()) wait_for(tensor);
  }
  const std::int64_t index = std::exchange(open_, -1);
  Node& node = graph_.nodes[static_cast<std::size_t>(index)];
  node.duration_ns = now_ns() - started_ns_;
  const auto input_of = [&](auto&& same) -> std::int64_t {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::size_t kept = alive_.size() - node.inputs.size() + i;
      if (same(alive_[kept])) return static_cast<std::int64_t>(i);
    }
    return -1;
  };
  bool new_result = !node.changed.empty();
  std::vector<at::Tensor> kept_outputs;
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    const at::Tensor& tensor = outputs[j];
    const std::int64_t itself = input_of([&](const at::Tensor& in) { return in.is_same(tensor); });
    const bool written =
        std::find(node.changed.begin(), node.changed.end(), itself) != node.changed.end();
    NodeOutput output{TensorForm::of(tensor), itself, tensor, ""};
    if (itself < 0) {
      output.view_of = input_of([&](const at::Tensor& in) {
        return storage_of(in) != nullptr && storage_of(in) == storage_of(tensor);
      });
    }
    node.outputs.push_back(std::move(output));
    if (itself >= 0 && !written) continue;  // handed through: whoever made it still did
    new_result = true;
    producers_[tensor.unsafeGetTensorImpl()] = {index, static_cast<std::int64_t>(j)};
    kept_outputs.push_back(tensor);
    if (tensor.requires_grad() && tensor.grad_fn()) {
      gradient_nodes_.emplace(tensor.grad_fn().get(), index);
    }
  }
  // A number was read, or a conversion had nothing to do.
  if (!new_result && node.kind != NodeKind::kGradient) {
    graph_.nodes.pop_back();
    return;
  }
  for (const std::int64_t changed : node.changed) {
    const std::size_t at = alive_.size() - node.inputs.size() + static_cast<std::size_t>(changed);
    const auto [begin, end] = bytes_of(alive_[at]);
    writes_[storage_of(alive_[at])].push_back({index, begin, end});
    node.inputs[static_cast<std::size_t>(changed)].written = faithful_copy(alive_[at]);
  }
  alive_.insert(alive_.end(), kept_outputs.begin(), kept_outputs.end());
  if (statistics_) {
    for (const NodeOutput& output : node.outputs) {
      node.statistics.push_back(at::isFloatingType(output.form.dtype) ? statistics_of(output.value)
                                                                      : Statistics{});
    }
  }
  if (node.kind == NodeKind::kOperation && is_uninitialised(node.function)) {
    // Filled by someone who is no operator.
    node.kind = NodeKind::kConstant;
    node.function = "constant";
    node.inputs.clear();
    node.replay = nullptr;
  }
  node.flops = flops_of(graph_, node);
  register_values(index);
}

void Recorder::register_values(std::int64_t index) {
  const Node& node = graph_.nodes[static_cast<std::size_t>(index)];
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    slots_[storage_of(node.inputs[i].value)].push_back({index, static_cast<std::int64_t>(i), true});
  for (std::size_t j = 0; j < node.outputs.size(); ++j)
    slots_[storage_of(node.outputs[j].value)].push_back(
        {index, static_cast<std::int64_t>(j), false});
}

void Recorder::keep_before_write(const at::Tensor& tensor) {
  const auto found = slots_.find(storage_of(tensor));
  if (found == slots_.end()) return;
  for (const Slot& slot : found->second) {
    Node& node = graph_.nodes[static_cast<std::size_t>(slot.node)];
    at::Tensor& value = slot.is_input ? node.inputs[static_cast<std::size_t>(slot.index)].value
                                      : node.outputs[static_cast<std::size_t>(slot.index)].value;
    value = faithful_copy(value);
  }
  found->second.clear();
}

}  // namespace kda::inspect
