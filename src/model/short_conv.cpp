#include "model/short_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/short_conv.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ShortConvForward arguments(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& cu_seqlens) {
  ShortConvForward args;
  args.storage = dtype_of(x);
  args.channels = x.size(1);
  args.width = static_cast<int>(weight.size(-1));
  args.cu_seqlens = host_span(cu_seqlens);
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  args.weight = weight.const_data_ptr();
  return args;
}

DeviceConv device_arguments(const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& cu_seqlens) {
  DeviceConv args;
  args.storage = dtype_of(x);
  args.stream = current_stream(x);
  args.tokens = x.size(0);
  args.channels = x.size(1);
  args.width = static_cast<int>(weight.size(-1));
  args.cu_seqlens = cu_seqlens.const_data_ptr<std::int64_t>();
  args.num_sequences = cu_seqlens.numel() - 1;
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  args.weight = weight.const_data_ptr<float>();
  return args;
}

void forward_on(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cu_seqlens,
                const at::Tensor& y) {
  if (x.is_cpu()) {
    ShortConvForward args = arguments(x, weight, cu_seqlens);
    args.y = y.mutable_data_ptr();
    return short_conv_forward(args);
  }
  DeviceConv args = device_arguments(x, weight, cu_seqlens);
  args.y = y.mutable_data_ptr();
  device_kernels().short_conv_forward(args);
}

void backward_on(const variable_list& saved, const at::Tensor& dy, const at::Tensor& dx,
                 const at::Tensor& dweight) {
  if (dy.is_cpu()) {
    ShortConvBackward args;
    args.forward = arguments(saved[0], saved[1], saved[2]);
    args.dy = dy.const_data_ptr();
    args.dy_stride = dy.stride(0);
    args.dx = dx.mutable_data_ptr();
    args.dweight = dweight.mutable_data_ptr();
    return short_conv_backward(args);
  }
  DeviceConv args = device_arguments(saved[0], saved[1], saved[2]);
  const std::int64_t pieces = (args.tokens + kDeviceConvRows - 1) / kDeviceConvRows;
  const at::Tensor partial = at::empty({pieces, args.channels, args.width}, dweight.options());
  args.dy = dy.const_data_ptr();
  args.dy_stride = dy.stride(0);
  args.dx = dx.mutable_data_ptr();
  args.dweight = dweight.mutable_data_ptr<float>();
  args.partial = partial.mutable_data_ptr<float>();
  device_kernels().short_conv_backward(args);
}

struct ShortConvFunction : torch::autograd::Function<ShortConvFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight,
                            const at::Tensor& cu_seqlens) {
    const at::Tensor x = has_unit_rows(x_in) ? x_in : x_in.contiguous();
    const at::Tensor y = at::empty(x.sizes(), x.options());
    forward_on(x, weight, cu_seqlens, y);
    ctx->save_for_backward({x, weight, cu_seqlens});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = has_unit_rows(grads[0]) ? grads[0] : grads[0].contiguous();
    const at::Tensor dx = at::empty(dy.sizes(), dy.options());
    const at::Tensor dweight = at::empty_like(saved[1]);
    backward_on(saved, dy, dx, dweight);
    return {dx, dweight, {}};
  }
};

// The last W-1 rows of [window; new rows] of every sequence become its window.
template <class T>
void advance_window(const at::Tensor& x, std::span<const std::int64_t> cu, at::Tensor& window) {
  const std::int64_t rows = window.size(1);
  const std::int64_t channels = window.size(2);
  const at::Tensor wide = x.to(window.scalar_type());
  for (std::int64_t n = 0; n < window.size(0); ++n) {
    const std::int64_t end = cu[static_cast<std::size_t>(n) + 1];
    const std::int64_t count = end - cu[static_cast<std::size_t>(n)];
    T* base = window.mutable_data_ptr<T>() + n * window.stride(0);
    for (std::int64_t r = 0; r < rows; ++r) {  // ascending: a row is read before it is overwritten
      const std::int64_t back = rows - r;      // distance from the end of the piece
      const T* source = back <= count ? wide.const_data_ptr<T>() + (end - back) * wide.stride(0)
                                      : base + (r + count) * window.stride(1);
      T* target = base + r * window.stride(1);
      if (source != target) std::copy(source, source + channels, target);
    }
  }
}

// The convolution before SiLU, from torch's operators. A tap reaches over a boundary where the
// token's place in its sequence is smaller than the tap's distance; such terms are masked.
at::Tensor masked_taps(const at::Tensor& wide, const at::Tensor& weight,
                       const at::Tensor& cu_seqlens) {
  const at::Tensor cu_host = cu_seqlens.to(at::kCPU);
  const auto cu = host_span(cu_host);
  const std::int64_t width = weight.size(-1);
  std::vector<std::int64_t> places;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    for (std::int64_t t = cu[n]; t < cu[n + 1]; ++t)
      places.push_back(t - cu[n]);
  }
  const at::Tensor place = index_tensor(places, wide.device()).unsqueeze(1);
  at::Tensor z = wide * weight.select(2, width - 1).squeeze(1);
  for (std::int64_t back = 1; back < width; ++back) {
    if (back >= wide.size(0)) break;
    const at::Tensor shifted = at::cat(
        {at::zeros({back, wide.size(1)}, wide.options()), wide.narrow(0, 0, wide.size(0) - back)});
    const at::Tensor taps = weight.select(2, width - 1 - back).squeeze(1);
    z = z + shifted * taps * place.ge(back).to(wide.scalar_type());
  }
  return z;
}

}  // namespace

at::Tensor short_conv_composed(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& cu_seqlens) {
  const at::Tensor wide = x.to(island_type_of(x.scalar_type()));
  return at::silu(masked_taps(wide, weight, cu_seqlens)).to(x.scalar_type());
}

at::Tensor short_conv_cached_composed(const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& cu_seqlens, at::Tensor& window) {
  // The windows become the first tokens of their sequences.
  const at::Tensor cu_host = cu_seqlens.to(at::kCPU);
  const auto cu = host_span(cu_host);
  const std::int64_t past = window.size(1);
  const at::Tensor wide = x.to(window.scalar_type());
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> longer{0};
  std::vector<std::int64_t> kept;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    const std::int64_t count = cu[n + 1] - cu[n];
    parts.push_back(window.select(0, static_cast<std::int64_t>(n)));
    parts.push_back(wide.narrow(0, cu[n], count));
    for (std::int64_t t = 0; t < count; ++t)
      kept.push_back(longer.back() + past + t);
    longer.push_back(longer.back() + past + count);
  }
  const at::Tensor rows = at::cat(parts);
  const at::Tensor z = masked_taps(rows, weight, index_tensor(longer));
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    window.select(0, static_cast<std::int64_t>(n))
        .copy_(rows.narrow(0, longer[n + 1] - past, past));
  }
  return at::silu(z.index_select(0, index_tensor(kept, x.device()))).to(x.scalar_type());
}

at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cu_seqlens) {
  const auto run = [](const at::Tensor& in, const at::Tensor& w, const at::Tensor& cu) {
    return has_kernels(in) ? ShortConvFunction::apply(in, w, cu) : short_conv_composed(in, w, cu);
  };
  return observed("short_conv", run, arg("x", x), arg("weight", weight),
                  arg("cu_seqlens", cu_seqlens));
}

namespace {

at::Tensor short_conv_cached_now(const at::Tensor& x_in, const at::Tensor& weight,
                                 const at::Tensor& cu_seqlens, at::Tensor window) {
  if (!has_kernels(x_in)) return short_conv_cached_composed(x_in, weight, cu_seqlens, window);
  const at::Tensor x = has_unit_rows(x_in) ? x_in : x_in.contiguous();
  const at::Tensor y = at::empty(x.sizes(), x.options());
  if (!x.is_cpu()) {
    DeviceConv args = device_arguments(x, weight, cu_seqlens);
    args.y = y.mutable_data_ptr();
    args.window = window.mutable_data_ptr<float>();
    args.window_sequence_stride = window.stride(0);
    args.window_row_stride = window.stride(1);
    device_kernels().short_conv_forward(args);
    return y;
  }
  ShortConvForward args = arguments(x, weight, cu_seqlens);
  args.window = window.const_data_ptr();
  args.window_sequence_stride = window.stride(0);
  args.window_row_stride = window.stride(1);
  args.y = y.mutable_data_ptr();
  short_conv_forward(args);
  if (window.scalar_type() == at::kDouble) {
    advance_window<double>(x, host_span(cu_seqlens), window);
  } else {
    advance_window<float>(x, host_span(cu_seqlens), window);
  }
  return y;
}

}  // namespace

at::Tensor short_conv_cached(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& cu_seqlens, at::Tensor& window) {
  return observed_change("short_conv_cached", "window", short_conv_cached_now, arg("x", x),
                         arg("weight", weight), arg("cu_seqlens", cu_seqlens),
                         arg("window", window));
}

}  // namespace kda::model
