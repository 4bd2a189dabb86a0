#include "model/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "kda/error.h"
#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/cross_entropy.h"
#include "model/linear.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Positions whose target counts, ascending.
std::vector<std::int64_t> counted_positions(const at::Tensor& targets, std::int64_t vocab) {
  const auto values = host_span(targets);
  std::vector<std::int64_t> positions;
  positions.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == kIgnoreTarget) continue;
    if (values[i] < 0 || values[i] >= vocab) {
      throw Error(ErrorCode::kInvalidArgument,
                  "targets: expected " + std::to_string(kIgnoreTarget) + " or an id in [0," +
                      std::to_string(vocab) + "), got " + std::to_string(values[i]) + " at token " +
                      std::to_string(i));
    }
    positions.push_back(static_cast<std::int64_t>(i));
  }
  return positions;
}

at::Tensor reduce_rows(at::Tensor& logits, const at::Tensor& targets, bool gradient) {
  if (!logits.is_cpu()) return reduce_loss_rows_composed(logits, targets, gradient);
  const at::Tensor losses =
      at::empty({logits.size(0)}, logits.options().dtype(island_type_of(logits.scalar_type())));
  CrossEntropyRows args;
  args.storage = dtype_of(logits);
  args.rows = logits.size(0);
  args.vocab = logits.size(1);
  args.logits = logits.mutable_data_ptr();
  args.targets = targets.const_data_ptr<std::int64_t>();
  args.gradient = gradient;
  args.losses = losses.mutable_data_ptr();
  cross_entropy_rows(args);
  return losses;
}

struct SliceResult {
  at::Tensor losses;   // [counted]
  at::Tensor dhidden;  // [counted,d]
  at::Tensor dhead;    // [vocab,d]
};

// bf16 products where they are fast; elsewhere everything stays f32, which is quicker and exact.
bool uses_bf16_products(const at::Tensor& rows) {
  return rows.scalar_type() == at::kBFloat16 && has_native_bf16_products(rows.device());
}

// On CUDA: logits and losses in f32 whatever the activations are, their gradients in the
// activation dtype.
SliceResult run_slices_on_cuda(const at::Tensor& rows, const at::Tensor& head,
                               const at::Tensor& targets, bool hidden_gradient,
                               bool head_gradient) {
  const bool narrow = rows.scalar_type() == at::kBFloat16;
  const at::Tensor weight = head.detach().to(rows.scalar_type());
  const at::Tensor device_targets = targets.to(rows.device());
  const std::int64_t count = rows.size(0);
  const std::int64_t slice = std::min(loss_slice_tokens(head.size(0), true), count);
  SliceResult result;
  result.losses = at::empty({count}, head.options().requires_grad(false));
  if (hidden_gradient) result.dhidden = at::empty(rows.sizes(), rows.options());
  if (head_gradient) {
    result.dhead = at::zeros(head.sizes(), head.options().requires_grad(false));
  }
  for (std::int64_t begin = 0; begin < count; begin += slice) {
    const std::int64_t size = std::min(slice, count - begin);
    const at::Tensor x = rows.narrow(0, begin, size);
    const at::Tensor logits = narrow ? at::mm(x, weight.t(), at::kFloat) : at::mm(x, weight.t());
    const bool gradient = hidden_gradient || head_gradient;
    const at::Tensor dlogits = gradient ? at::empty(logits.sizes(), rows.options()) : at::Tensor();
    DeviceCrossEntropy args;
    args.stream = current_stream(rows);
    args.rows = size;
    args.vocab = head.size(0);
    args.logits = logits.const_data_ptr<float>();
    args.targets = device_targets.const_data_ptr<std::int64_t>() + begin;
    args.losses = result.losses.mutable_data_ptr<float>() + begin;
    args.storage = dtype_of(rows);
    args.dlogits = gradient ? dlogits.mutable_data_ptr() : nullptr;
    device_kernels().cross_entropy_rows(args);
    if (hidden_gradient) {
      at::Tensor target = result.dhidden.narrow(0, begin, size);
      at::mm_out(target, dlogits, weight);
    }
    if (head_gradient) {
      narrow ? result.dhead.add_(at::mm(dlogits.t(), x, at::kFloat))
             : result.dhead.addmm_(dlogits.t(), x);
    }
  }
  return result;
}

// Walks over the counted rows in slices. Wide products write into the same buffers again and again:
// fresh ones of this size would cost a page fault per 4 KiB.
SliceResult run_slices(const at::Tensor& hidden_rows, const at::Tensor& head,
                       const at::Tensor& targets, bool hidden_gradient, bool head_gradient) {
  if (hidden_rows.is_cuda() && has_kernels(hidden_rows)) {
    return run_slices_on_cuda(hidden_rows, head, targets, hidden_gradient, head_gradient);
  }
  const bool narrow = uses_bf16_products(hidden_rows);
  const at::Tensor rows = narrow ? hidden_rows : hidden_rows.to(head.scalar_type());
  const std::int64_t count = rows.size(0);
  const std::int64_t slice = std::min(loss_slice_tokens(head.size(0)), count);
  const bool gradient = hidden_gradient || head_gradient;
  SliceResult result;
  result.losses = at::empty({count}, head.options().requires_grad(false));
  if (hidden_gradient) result.dhidden = at::empty(rows.sizes(), rows.options());
  if (head_gradient) result.dhead = at::zeros(head.sizes(), head.options());
  const at::Tensor buffer =
      narrow ? at::Tensor() : at::empty({slice, head.size(0)}, rows.options());
  for (std::int64_t begin = 0; begin < count; begin += slice) {
    const std::int64_t size = std::min(slice, count - begin);
    const at::Tensor x = rows.narrow(0, begin, size);
    at::Tensor logits = narrow ? product_forward(x, head) : buffer.narrow(0, 0, size);
    if (!narrow) at::mm_out(logits, x, head.t());
    result.losses.narrow(0, begin, size)
        .copy_(reduce_rows(logits, targets.narrow(0, begin, size), gradient));
    if (hidden_gradient) {
      at::Tensor target = result.dhidden.narrow(0, begin, size);
      narrow ? target.copy_(product_input_gradient(logits, head))
             : at::mm_out(target, logits, head);
    }
    if (head_gradient) {
      narrow ? result.dhead.add_(product_weight_gradient(logits, x))
             : result.dhead.addmm_(logits.t(), x);
    }
  }
  if (hidden_gradient) result.dhidden = result.dhidden.to(hidden_rows.scalar_type());
  return result;
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets, bool hidden_gradient, bool head_gradient) {
    std::vector<std::int64_t> positions = counted_positions(targets, head.size(0));
    const bool all = static_cast<std::int64_t>(positions.size()) == hidden.size(0);
    at::Tensor rows = hidden.contiguous();
    at::Tensor row_targets = targets;
    at::Tensor index;
    if (!all) {
      index = index_tensor(positions);
      row_targets = targets.index_select(0, index);
      index = index.to(hidden.device());
      rows = rows.index_select(0, index);
    }
    SliceResult result = run_slices(rows, head, row_targets, hidden_gradient, head_gradient);
    at::Tensor dhidden = result.dhidden;
    if (hidden_gradient && !all) {
      dhidden = at::zeros(hidden.sizes(), hidden.options());
      dhidden.index_copy_(0, index, result.dhidden);
    }
    ctx->save_for_backward({dhidden, result.dhead});
    // Summed in f64: the sum runs over many more terms than f32 sums bear.
    return result.losses.sum(at::kDouble).to(result.losses.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list out(5);
    if (saved[0].defined()) out[0] = saved[0] * grads[0].to(saved[0].scalar_type());
    if (saved[1].defined()) out[1] = saved[1] * grads[0];
    return out;
  }
};

}  // namespace

at::Tensor reduce_loss_rows_composed(at::Tensor& logits, const at::Tensor& targets, bool gradient) {
  const at::Tensor index = targets.to(logits.device()).unsqueeze(1);
  at::Tensor log_p = at::log_softmax(logits.to(island_type_of(logits.scalar_type())), 1);
  const at::Tensor losses = log_p.gather(1, index).squeeze(1).neg();
  if (gradient) {
    log_p.exp_();
    log_p.scatter_add_(1, index, at::zeros(index.sizes(), log_p.options()).sub_(1));
    logits.copy_(log_p);
  }
  return losses;
}

std::int64_t loss_slice_tokens(std::int64_t vocab_size, bool on_cuda) {
  if (on_cuda) {
    constexpr std::int64_t kDeviceElements = 256 << 20;
    return std::clamp<std::int64_t>(kDeviceElements / vocab_size, 1024, 32768);
  }
  constexpr std::int64_t kSliceElements = 2 << 20;  // 8 MiB of f32 logits: the third-level cache
  return std::clamp<std::int64_t>(kSliceElements / vocab_size, 64, 4096);
}

at::Tensor cross_entropy_sum(const at::Tensor& hidden, const at::Tensor& head,
                             const at::Tensor& targets) {
  const bool grad = c10::GradMode::is_enabled();
  const auto run = [](const auto&... args) { return CrossEntropyFunction::apply(args...); };
  return observed("cross_entropy_sum", run, arg("hidden", hidden), arg("head", head),
                  arg("targets", targets), arg("hidden_gradient", grad && hidden.requires_grad()),
                  arg("head_gradient", grad && head.requires_grad()));
}

at::Tensor cross_entropy_each(const at::Tensor& hidden, const at::Tensor& head,
                              const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  std::vector<std::int64_t> positions = counted_positions(targets, head.size(0));
  const at::Tensor host_index = index_tensor(positions);
  const at::Tensor index = host_index.to(hidden.device());
  const SliceResult result = run_slices(hidden.index_select(0, index), head,
                                        targets.index_select(0, host_index), false, false);
  at::Tensor losses = at::zeros({hidden.size(0)}, result.losses.options());
  losses.index_copy_(0, index, result.losses);
  return losses;
}

std::int64_t count_targets(const at::Tensor& targets) {
  std::int64_t count = 0;
  for (const std::int64_t target : host_span(targets))
    count += target != kIgnoreTarget ? 1 : 0;
  return count;
}

}  // namespace kda::model
