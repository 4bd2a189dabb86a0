#include "inspect/backward.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cctype>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kda::inspect {
namespace {

using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;
using GradientFunction = torch::autograd::Node;

std::vector<at::Tensor> defined(const variable_list& list) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : list)
    if (tensor.defined()) all.push_back(tensor);
  return all;
}

// Outlives the hooks' use: a hook of a leaf may stay behind as long as somebody holds its graph.
struct Listener {
  Recorder* recorder = nullptr;
};

Operation operation_of(const std::shared_ptr<GradientFunction>& function,
                       const variable_list& grads, const Recorder& recorder) {
  Operation out;
  out.function = gradient_name(function->name());
  out.kind = NodeKind::kGradient;
  out.gradient_of = recorder.node_of_gradient(function.get());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) out.inputs.push_back({"grad[" + std::to_string(i) + "]", grads[i]});
  }
  if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(function.get())) {
    out.inputs.push_back({"leaf", leaf->variable});
    return out;  // adds to a leaf: running it again would add again
  }
  out.replay = [function, grads](const std::vector<at::Tensor>& inputs) {
    variable_list again = grads;
    std::size_t next = 0;
    for (at::Tensor& grad : again)
      if (grad.defined()) grad = inputs[next++];
    return defined((*function)(std::move(again)));
  };
  return out;
}

class Before : public FunctionPreHook {
 public:
  Before(std::shared_ptr<Listener> listener, std::weak_ptr<GradientFunction> function)
      : listener_(std::move(listener)), function_(std::move(function)) {}
  variable_list operator()(const variable_list& grads) override {
    if (Recorder* recorder = listener_->recorder) {
      recorder->adopt_thread();
      recorder->begin_operation(operation_of(function_.lock(), grads, *recorder));
    }
    return grads;
  }

 private:
  std::shared_ptr<Listener> listener_;
  std::weak_ptr<GradientFunction> function_;
};

class After : public FunctionPostHook {
 public:
  explicit After(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (Recorder* recorder = listener_->recorder) recorder->end_operation(defined(outputs));
    return outputs;
  }

 private:
  std::shared_ptr<Listener> listener_;
};

std::vector<std::shared_ptr<GradientFunction>> functions_behind(const at::Tensor& loss) {
  std::vector<std::shared_ptr<GradientFunction>> all{loss.grad_fn()};
  std::unordered_set<const GradientFunction*> seen{loss.grad_fn().get()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const torch::autograd::Edge& edge : all[i]->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) all.push_back(edge.function);
    }
  }
  return all;
}

}  // namespace

std::string gradient_name(const std::string& name) {
  std::string last = name.substr(name.rfind(':') + 1);
  while (!last.empty() && (last.back() == '>' || std::isdigit(last.back()) != 0))
    last.pop_back();
  std::string out;
  for (const char c : last) {
    if (std::isupper(c) != 0 && !out.empty()) out += '_';
    out += static_cast<char>(std::tolower(c));
  }
  constexpr std::string_view kFunction = "_function";
  if (out.ends_with(kFunction)) out.resize(out.size() - kFunction.size());
  return out == "accumulate_grad" || out.ends_with("_backward") ? out : out + "_backward";
}

void record_backward(Recorder& recorder, const at::Tensor& loss) {
  const auto listener = std::make_shared<Listener>();
  for (const auto& function : functions_behind(loss)) {
    function->add_pre_hook(std::make_unique<Before>(listener, function));
    function->add_post_hook(std::make_unique<After>(listener));
  }
  listener->recorder = &recorder;
  try {
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
  } catch (...) {
    listener->recorder = nullptr;
    throw;
  }
  listener->recorder = nullptr;
}

}  // namespace kda::inspect
