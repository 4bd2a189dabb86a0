#include "model/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Flash attention on CUDA adds query gradients with atomics, in no fixed order, unless the whole
// process asks for determinism; asked here for one call, so that a resumed run has the same bits.
class FixedOrder {
 public:
  FixedOrder()
      : before_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);  // a write for nothing
  }
  ~FixedOrder() {
    at::globalContext().setDeterministicAlgorithms(before_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  bool before_;
  bool warn_only_;
  bool fill_;
};

at::Tensor unit_last(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// One sequence as the host kernel wants it: [1,H,T,D], a view.
at::Tensor piece(const at::Tensor& x, std::int64_t begin, std::int64_t length) {
  return x.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
}

// One call for each sequence.
struct HostAttention : torch::autograd::Function<HostAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, const at::Tensor& cu_host, double scale) {
    const at::Tensor q = unit_last(q_in);
    const at::Tensor k = unit_last(k_in);
    const at::Tensor v = unit_last(v_in);
    const at::Tensor out = at::empty(q.sizes(), q.options());
    variable_list saved{q, k, v, out, cu_host};
    const auto cu = host_span(cu_host);
    for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
      const std::int64_t length = cu[n + 1] - cu[n];
      if (length == 0) continue;
      const auto [o, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          piece(q, cu[n], length), piece(k, cu[n], length), piece(v, cu[n], length),
          /*dropout_p=*/0.0, /*is_causal=*/true, /*attn_mask=*/{}, scale);
      piece(out, cu[n], length).copy_(o);
      saved.push_back(sums);
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const at::Tensor& k = saved[1];
    const at::Tensor& v = saved[2];
    const at::Tensor dout = unit_last(grads[0]);
    const at::Tensor dq = at::empty(q.sizes(), q.options());
    const at::Tensor dk = at::empty(k.sizes(), k.options());
    const at::Tensor dv = at::empty(v.sizes(), v.options());
    const auto cu = host_span(saved[4]);
    std::size_t next = 5;
    for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
      const std::int64_t length = cu[n + 1] - cu[n];
      if (length == 0) continue;
      const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          piece(dout, cu[n], length), piece(q, cu[n], length), piece(k, cu[n], length),
          piece(v, cu[n], length), piece(saved[3], cu[n], length), saved[next++],
          /*dropout_p=*/0.0, /*is_causal=*/true, /*attn_mask=*/{},
          ctx->saved_data["scale"].toDouble());
      piece(dq, cu[n], length).copy_(gq);
      piece(dk, cu[n], length).copy_(gk);
      piece(dv, cu[n], length).copy_(gv);
    }
    return {dq, dk, dv, {}, {}};
  }
};

// bf16 on CUDA: one kernel for all sequences.
struct CudaFlashAttention : torch::autograd::Function<CudaFlashAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, const at::Tensor& cu, std::int64_t longest,
                            double scale) {
    const at::Tensor q = unit_last(q_in);
    const at::Tensor k = unit_last(k_in);
    const at::Tensor v = unit_last(v_in);
    const auto [out, sums, seed, unused, debug] = at::_flash_attention_forward(
        q, k, v, cu, cu, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, scale);
    ctx->save_for_backward({q, k, v, out, sums, cu, seed, unused});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const std::int64_t longest = ctx->saved_data["longest"].toInt();
    const FixedOrder fixed_order;
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[5], s[5], longest, longest,
        /*dropout_p=*/0.0, /*is_causal=*/true, s[6], s[7], ctx->saved_data["scale"].toDouble());
    return {dq, dk, dv, {}, {}, {}};
  }
};

// f32 on CUDA: likewise, [1,tokens,H,D].
struct CudaWideAttention : torch::autograd::Function<CudaWideAttention> {
  static constexpr std::int64_t kCausalFromTopLeft = 1;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, const at::Tensor& cu, std::int64_t longest,
                            double scale) {
    const at::Tensor q = q_in.contiguous().unsqueeze(0);
    const at::Tensor k = k_in.contiguous().unsqueeze(0);
    const at::Tensor v = v_in.contiguous().unsqueeze(0);
    const auto [out, sums, seed, offset, max_q, max_k] = at::_efficient_attention_forward(
        q, k, v, /*bias=*/{}, cu, cu, longest, longest, /*dropout_p=*/0.0, kCausalFromTopLeft,
        /*compute_log_sumexp=*/true, scale);
    ctx->save_for_backward({q, k, v, out, sums, cu, seed, offset});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["scale"] = scale;
    return out.squeeze(0);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const std::int64_t longest = ctx->saved_data["longest"].toInt();
    const FixedOrder fixed_order;
    const auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
        grads[0].contiguous().unsqueeze(0), s[0], s[1], s[2], /*bias=*/{}, s[3], s[5], s[5],
        longest, longest, s[4], /*dropout_p=*/0.0, s[6], s[7], kCausalFromTopLeft,
        /*bias_requires_grad=*/false, ctx->saved_data["scale"].toDouble());
    return {dq.squeeze(0), dk.squeeze(0), dv.squeeze(0), {}, {}, {}};
  }
};

at::Tensor padded(const at::Tensor& x, std::int64_t width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

// True above the diagonal of [length,length].
at::Tensor future(std::int64_t length, const at::TensorOptions& options) {
  return at::ones({length, length}, options.dtype(at::kBool)).triu(1);
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor packed_attention_composed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const Sequences& sequences, double scale) {
  const auto cu = host_span(sequences.cu_host);
  const at::ScalarType wide = island_type_of(q.scalar_type());
  std::vector<at::Tensor> outputs;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    const std::int64_t length = cu[n + 1] - cu[n];
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, cu[n], length).transpose(0, 1).to(wide);
    };
    const at::Tensor logits = at::matmul(part(q), part(k).transpose(1, 2)) * scale;
    const at::Tensor p =
        at::softmax(logits.masked_fill(future(length, q.options()), kMinusInfinity), -1);
    outputs.push_back(at::matmul(p, part(v)).transpose(0, 1));
  }
  return at::cat(outputs).to(q.scalar_type());
}

namespace {

at::Tensor packed_attention_now(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Sequences& sequences, double scale) {
  const bool cuda = q.is_cuda();
  if (cuda && q.scalar_type() == at::kDouble) {
    return packed_attention_composed(q, k, v, sequences, scale);
  }
  std::int64_t width = std::max(q.size(2), v.size(2));
  if (cuda) width = (width + 7) / 8 * 8;
  const at::Tensor wide_q = padded(q, width);
  const at::Tensor wide_k = padded(k, width);
  const at::Tensor wide_v = padded(v, width);
  at::Tensor out;
  if (!cuda) {
    out = HostAttention::apply(wide_q, wide_k, wide_v, sequences.cu_host, scale);
  } else if (q.scalar_type() == at::kBFloat16) {
    out = CudaFlashAttention::apply(wide_q, wide_k, wide_v, sequences.cu_i32, sequences.longest,
                                    scale);
  } else {
    out = CudaWideAttention::apply(wide_q, wide_k, wide_v, sequences.cu_i32, sequences.longest,
                                   scale);
  }
  return width == v.size(2) ? out : out.narrow(2, 0, v.size(2));
}

}  // namespace

at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Sequences& sequences, double scale) {
  return observed("packed_attention", packed_attention_now, arg("q", q), arg("k", k), arg("v", v),
                  arg("sequences", sequences), arg("scale", scale));
}

at::Tensor largest_logits(const at::Tensor& q, const at::Tensor& k, const Sequences& sequences,
                          double scale) {
  const c10::NoGradGuard no_grad;
  constexpr std::int64_t kBlock = 256;  // queries at a time
  const at::ScalarType wide = island_type_of(q.scalar_type());
  at::Tensor largest = at::full({q.size(1)}, kMinusInfinity, q.options().dtype(wide));
  const auto cu = host_span(sequences.cu_host);
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    for (std::int64_t begin = cu[n]; begin < cu[n + 1]; begin += kBlock) {
      const std::int64_t rows = std::min(kBlock, cu[n + 1] - begin);
      const std::int64_t past = begin - cu[n];
      const at::Tensor queries = q.narrow(0, begin, rows).transpose(0, 1).to(wide);
      const at::Tensor keys = k.narrow(0, cu[n], past + rows).transpose(0, 1).to(wide);
      const at::Tensor mask =
          at::ones({rows, past + rows}, q.options().dtype(at::kBool)).triu(past + 1);
      const at::Tensor logits =
          (at::matmul(queries, keys.transpose(1, 2)) * scale).masked_fill(mask, kMinusInfinity);
      largest = at::maximum(largest, logits.amax({1, 2}));
    }
  }
  return largest;
}

}  // namespace kda::model
