// The layers' own autograd functions: gradients in f64, agreement of f32 and bf16 with f64.
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "kda/parallel.h"
#include "model/cross_entropy.h"
#include "model/gated_norm.h"
#include "model/linear.h"
#include "model/model_test_support.h"
#include "model/rms_norm.h"
#include "model/short_conv.h"
#include "model/swiglu.h"

namespace kda::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Documents of 1, 2, 3, 130 and 5 tokens, one empty: longer than a piece, shorter than the kernel.
at::Tensor document_bounds() { return index({0, 1, 3, 6, 6, 136, 141}); }

at::Tensor conv_by_torch(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cu) {
  Tensors parts;
  for (std::int64_t n = 0; n + 1 < cu.numel(); ++n) {
    const std::int64_t begin = cu[n].item<std::int64_t>();
    const std::int64_t count = cu[n + 1].item<std::int64_t>() - begin;
    if (count == 0) continue;
    const std::int64_t pad = weight.size(2) - 1;
    const at::Tensor rows = x.narrow(0, begin, count).t().unsqueeze(0);
    const at::Tensor padded = at::cat({at::zeros({1, x.size(1), pad}, x.options()), rows}, 2);
    parts.push_back(at::silu(at::conv1d(padded, weight, {}, at::IntArrayRef{1}, at::IntArrayRef{0},
                                        at::IntArrayRef{1}, x.size(1))
                                 .squeeze(0)
                                 .t()));
  }
  return at::cat(parts);
}

TEST(ShortConv_Forward, EqualsConv1dPerDocument) {
  const at::Tensor cu = document_bounds();
  for (const std::int64_t width : {2, 3, 4}) {
    const at::Tensor x = random_tensor({141, 21}, 1);
    const at::Tensor w = random_tensor({21, 1, width}, 2);
    EXPECT_LT(max_difference(model::short_conv(x, w, cu), conv_by_torch(x, w, cu)), 1e-14);
    const at::Tensor y32 = model::short_conv(x.to(at::kFloat), w.to(at::kFloat), cu);
    EXPECT_LT(max_difference(y32, conv_by_torch(x, w, cu)), 1e-6);
    const at::Tensor narrow = x.to(at::kBFloat16);
    const at::Tensor y16 = model::short_conv(narrow, w.to(at::kFloat), cu);
    const at::Tensor exact =
        conv_by_torch(narrow.to(at::kDouble), w.to(at::kFloat).to(at::kDouble), cu);
    EXPECT_LT(((y16.to(at::kDouble) - exact).abs() / (exact.abs() + 1e-3)).max().item<double>(),
              0.0041);  // one rounding to 8 bits
  }
}

TEST(ShortConv_Forward, AcceptsColumnsOfAWiderMatrix) {
  const at::Tensor wide = random_tensor({30, 50}, 3, at::kFloat);
  const at::Tensor w = random_tensor({20, 1, 4}, 4, at::kFloat);
  const at::Tensor cu = index({0, 30});
  const at::Tensor columns = wide.narrow(1, 7, 20);
  EXPECT_TRUE(
      same_bits(model::short_conv(columns, w, cu), model::short_conv(columns.contiguous(), w, cu)));
}

TEST(ShortConv_Gradient, CentralDifferences) {
  for (const std::int64_t width : {2, 4}) {
    const at::Tensor cu = index({0, 1, 3, 6, 6, 13});
    check_gradients([&](const Tensors& in) { return Tensors{model::short_conv(in[0], in[1], cu)}; },
                    {random_tensor({13, 5}, 5), random_tensor({5, 1, width}, 6)});
  }
}

TEST(ShortConv_Gradient, PiecesOfLongDocumentsEqualConv1d) {
  const at::Tensor cu = index({0, 300, 301, 430});
  at::Tensor x = random_tensor({430, 19}, 7);
  at::Tensor w = random_tensor({19, 1, 4}, 8);
  const at::Tensor dy = random_tensor({430, 19}, 9);
  const auto run = [&](auto&& f) {
    at::Tensor a = x.clone().set_requires_grad(true);
    at::Tensor b = w.clone().set_requires_grad(true);
    torch::autograd::backward({f(a, b, cu)}, {dy});
    return Tensors{a.grad(), b.grad()};
  };
  const Tensors ours = run(model::short_conv);
  const Tensors theirs = run(conv_by_torch);
  EXPECT_LT(max_difference(ours[0], theirs[0]), 1e-13);
  EXPECT_LT(max_difference(ours[1], theirs[1]), 1e-11);
  x = x.to(at::kFloat);
  w = w.to(at::kFloat);
  at::Tensor a = x.clone().set_requires_grad(true);
  at::Tensor b = w.clone().set_requires_grad(true);
  torch::autograd::backward({model::short_conv(a, b, cu)}, {dy.to(at::kFloat)});
  EXPECT_LT(max_difference(a.grad(), theirs[0]), 2e-6);
  EXPECT_LT(max_difference(b.grad(), theirs[1]), 2e-4);
}

TEST(ShortConv_Window, AnyCutEqualsOnePass) {
  const at::Tensor x = random_tensor({40, 17}, 10, at::kFloat);
  const at::Tensor w = random_tensor({17, 1, 4}, 11, at::kFloat);
  const at::Tensor whole = model::short_conv(x, w, index({0, 40}));
  for (const std::vector<std::int64_t>& cut :
       {std::vector<std::int64_t>{1, 1, 1, 37}, {2, 3, 35}, {0, 4, 36}, {39, 1}}) {
    at::Tensor window = at::zeros({1, 3, 17}, x.options());
    Tensors parts;
    std::int64_t begin = 0;
    for (const std::int64_t count : cut) {
      parts.push_back(
          model::short_conv_cached(x.narrow(0, begin, count), w, index({0, count}), window));
      begin += count;
    }
    EXPECT_TRUE(same_bits(at::cat(parts), whole));
    EXPECT_TRUE(same_bits(window.squeeze(0), x.narrow(0, 37, 3)));
  }
}

at::Tensor gated_norm_by_torch(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                               double eps) {
  const at::Tensor rms = ((x * x).mean(-1, true) + eps).sqrt();
  return ((x / rms) * gain * at::sigmoid(gate).view(x.sizes())).flatten(1);
}

TEST(GatedNorm_Forward, EqualsTheFormula) {
  const at::Tensor x = random_tensor({9, 3, 20}, 12);
  const at::Tensor gate = random_tensor({9, 60}, 13) * 4;
  const at::Tensor gain = random_tensor({20}, 14);
  const at::Tensor exact = gated_norm_by_torch(x, gate, gain, 1e-5);
  EXPECT_LT(max_difference(model::gated_norm(x, gate, gain, 1e-5), exact), 1e-14);
  EXPECT_LT(max_difference(
                model::gated_norm(x.to(at::kFloat), gate.to(at::kFloat), gain.to(at::kFloat), 1e-5),
                exact),
            1e-6);
}

TEST(GatedNorm_Forward, ExtremeGatesStayFinite) {
  const at::Tensor x = random_tensor({2, 1, 16}, 15, at::kFloat);
  const at::Tensor gain = at::zeros({16}, x.options()).add_(1);
  const at::Tensor closed = at::zeros({2, 16}, x.options()).sub_(1e30);
  EXPECT_LT(model::gated_norm(x, closed, gain, 1e-5).abs().max().item<float>(), 1e-37F);
  const at::Tensor open = at::zeros({2, 16}, x.options()).add_(1e30);
  EXPECT_LT(max_difference(model::gated_norm(x, open, gain, 1e-5),
                           gated_norm_by_torch(x, open, gain, 1e-5)),
            1e-6);
}

TEST(GatedNorm_Gradient, CentralDifferences) {
  check_gradients(
      [](const Tensors& in) { return Tensors{model::gated_norm(in[0], in[1], in[2], 1e-5)}; },
      {random_tensor({5, 2, 11}, 16), random_tensor({5, 22}, 17) * 2, random_tensor({11}, 18)});
}

TEST(RmsNorm_Gradient, CentralDifferencesWithAndWithoutDelta) {
  check_gradients(
      [](const Tensors& in) {
        const auto out = model::add_rms_norm(in[0], in[1], in[2], 1e-5, DType::kF64);
        return Tensors{out.sum, out.normed};
      },
      {random_tensor({6, 11}, 19), random_tensor({6, 11}, 20), random_tensor({11}, 21)});
  check_gradients(
      [](const Tensors& in) {
        const auto out = model::add_rms_norm(in[0], {}, in[1], 1e-5, DType::kF64);
        return Tensors{out.sum * out.sum, out.normed};
      },
      {random_tensor({6, 11}, 22), random_tensor({11}, 23)});
}

TEST(RmsNorm_Bf16, ResidualStaysWide) {
  const at::Tensor h = random_tensor({70, 33}, 24, at::kFloat);
  const at::Tensor delta = random_tensor({70, 33}, 25, at::kBFloat16);
  const at::Tensor gain = random_tensor({33}, 26, at::kFloat);
  const auto out = model::add_rms_norm(h, delta, gain, 1e-5, DType::kBF16);
  EXPECT_TRUE(same_bits(out.sum, h + delta.to(at::kFloat)));
  const auto exact = model::add_rms_norm(out.sum, {}, gain, 1e-5, DType::kF32).normed;
  EXPECT_TRUE(same_bits(out.normed, exact.to(at::kBFloat16)));  // one rounding, to nearest even
}

TEST(Swiglu_Gradient, CentralDifferences) {
  check_gradients([](const Tensors& in) { return Tensors{model::swiglu(in[0], in[1])}; },
                  {random_tensor({4, 19}, 27) * 3, random_tensor({4, 19}, 28)});
}

TEST(Linear_Gradient, SharedInputCentralDifferences) {
  check_gradients(
      [](const Tensors& in) {
        return model::linear(in[0], {in[1], in[2], in[3]});
      },
      {random_tensor({5, 7}, 29), random_tensor({3, 7}, 30), random_tensor({1, 7}, 31),
       random_tensor({4, 7}, 32)});
}

TEST(Linear_Bf16, RoundsOnceFromExactProducts) {
  const at::Tensor x = random_tensor({8, 96}, 33, at::kBFloat16);
  const at::Tensor w = random_tensor({40, 96}, 34, at::kBFloat16).to(at::kFloat);
  const at::Tensor y = model::linear_one(x, w);
  ASSERT_EQ(y.scalar_type(), at::kBFloat16);
  const at::Tensor exact = x.to(at::kDouble).matmul(w.to(at::kDouble).t());
  EXPECT_LT(((y.to(at::kDouble) - exact).abs() / (exact.abs() + 0.05)).max().item<double>(),
            0.0045);
}

TEST(Joined_Views, NeighboursAreNotCopied) {
  const at::Tensor block = random_tensor({6, 10}, 35);
  const at::Tensor rows = model::joined({block.narrow(0, 1, 2), block.narrow(0, 3, 3)}, 0);
  EXPECT_EQ(rows.const_data_ptr(), block.narrow(0, 1, 5).const_data_ptr());
  EXPECT_TRUE(same_bits(rows, block.narrow(0, 1, 5)));
  const at::Tensor columns = model::joined({block.narrow(1, 2, 3), block.narrow(1, 5, 5)}, 1);
  EXPECT_EQ(columns.const_data_ptr(), block.narrow(1, 2, 8).const_data_ptr());
  EXPECT_TRUE(same_bits(columns, block.narrow(1, 2, 8)));
  // In the wrong order, with a gap, or from elsewhere: a copy with the right values.
  const at::Tensor swapped = model::joined({block.narrow(1, 5, 5), block.narrow(1, 2, 3)}, 1);
  EXPECT_TRUE(same_bits(swapped, at::cat({block.narrow(1, 5, 5), block.narrow(1, 2, 3)}, 1)));
  const at::Tensor gap = model::joined({block.narrow(0, 0, 2), block.narrow(0, 3, 3)}, 0);
  EXPECT_TRUE(same_bits(gap, at::cat({block.narrow(0, 0, 2), block.narrow(0, 3, 3)}, 0)));
}

TEST(CrossEntropy_Value, EqualsTorchAndSkipsIgnored) {
  // More rows than one slice holds would be slow here: a large vocabulary shrinks the slice.
  const std::int64_t vocab = 70'001;
  ASSERT_EQ(model::loss_slice_tokens(vocab), 64);
  const at::Tensor h = random_tensor({150, 6}, 36);
  const at::Tensor head = random_tensor({vocab, 6}, 37) * 3;
  auto ids = random_ids(150, vocab, 38);
  for (std::size_t i = 0; i < ids.size(); i += 3)
    ids[i] = model::kIgnoreTarget;
  const at::Tensor targets = index(ids);
  const at::Tensor logits = h.matmul(head.t());
  const at::Tensor each = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, -100);
  EXPECT_LT(max_difference(model::cross_entropy_each(h, head, targets), each), 1e-11);
  EXPECT_NEAR(model::cross_entropy_sum(h, head, targets).item<double>(), each.sum().item<double>(),
              1e-9);
  EXPECT_EQ(model::count_targets(targets), 100);
}

TEST(CrossEntropy_Gradient, CentralDifferences) {
  const at::Tensor targets = index({3, model::kIgnoreTarget, 0, 16, 5});
  check_gradients(
      [&](const Tensors& in) { return Tensors{model::cross_entropy_sum(in[0], in[1], targets)}; },
      {random_tensor({5, 4}, 39), random_tensor({17, 4}, 40) * 2});
}

TEST(CrossEntropy_Gradient, AllIgnoredIsZeroAndFinite) {
  const at::Tensor targets = index({-100, -100, -100});
  at::Tensor h = random_tensor({3, 4}, 41).set_requires_grad(true);
  at::Tensor head = random_tensor({17, 4}, 42).set_requires_grad(true);
  const at::Tensor loss = model::cross_entropy_sum(h, head, targets);
  EXPECT_EQ(loss.item<double>(), 0.0);
  torch::autograd::backward({loss}, {});
  EXPECT_EQ(h.grad().abs().max().item<double>(), 0.0);
  EXPECT_EQ(head.grad().abs().max().item<double>(), 0.0);
}

TEST(CrossEntropy_Targets, OutOfRangeIsRefused) {
  const at::Tensor h = random_tensor({2, 4}, 43);
  const at::Tensor head = random_tensor({17, 4}, 44);
  for (const std::int64_t bad : {17, -1, -101}) {
    expect_contains(error_of(
                        [&] {
                          model::cross_entropy_sum(h, head, index({0, bad}));
                        },
                        ErrorCode::kInvalidArgument),
                    std::to_string(bad));
  }
}

TEST(CrossEntropy_NonFinite, PoisonReachesTheLoss) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t vocab : {5, 33}) {  // below and above one vector
      at::Tensor h = random_tensor({3, 4}, 45, type);
      h[1][2] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor losses =
          model::cross_entropy_each(h, random_tensor({vocab, 4}, 46, at::kFloat), index({1, 1, 1}));
      EXPECT_TRUE(losses[1].isnan().item<bool>());
      EXPECT_FALSE(losses[0].isnan().item<bool>());
    }
  }
}

TEST(Linear_FewRows, EqualTheExactProduct) {
  for (std::int64_t rows = 1; rows <= 9; ++rows) {
    const at::Tensor x = random_tensor({rows, 101}, 60, at::kFloat);
    const at::Tensor w = random_tensor({67, 101}, 61, at::kFloat);
    const at::Tensor exact = x.to(at::kDouble).matmul(w.to(at::kDouble).t());
    EXPECT_LT(max_difference(model::product_forward(x, w), exact), 5e-6) << rows;
    const at::Tensor wide = random_tensor({rows, 150}, 62, at::kFloat);
    EXPECT_TRUE(same_bits(model::product_forward(wide.narrow(1, 9, 101), w),
                          model::product_forward(wide.narrow(1, 9, 101).contiguous(), w)));
  }
}

// The forms for other devices, on the host.
TEST(Composed_Layers, EqualTheKernels) {
  const auto close = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    EXPECT_LT(max_difference(a, b), 1e-13);
  };
  const at::Tensor cu = document_bounds();
  const at::Tensor x = random_tensor({141, 10}, 70);
  const at::Tensor w = random_tensor({10, 1, 4}, 71);
  close(model::short_conv_composed(x, w, cu), model::short_conv(x, w, cu));
  at::Tensor one = random_tensor({6, 3, 10}, 72);
  at::Tensor two = one.clone();
  close(model::short_conv_cached_composed(x, w, cu, one), model::short_conv_cached(x, w, cu, two));
  close(one, two);
  const at::Tensor gate = random_tensor({141, 10}, 73);
  const at::Tensor gain = random_tensor({5}, 74);
  close(model::gated_norm_composed(x.view({141, 2, 5}), gate, gain, 1e-5),
        model::gated_norm(x.view({141, 2, 5}), gate, gain, 1e-5));
  close(model::swiglu_composed(x, gate), model::swiglu(x, gate));
  const at::Tensor wide_gain = random_tensor({10}, 75);
  const auto kernel = model::add_rms_norm(x, gate, wide_gain, 1e-5, DType::kF64);
  const auto composed = model::add_rms_norm_composed(x, gate, wide_gain, 1e-5, DType::kF64);
  close(composed.sum, kernel.sum);
  close(composed.normed, kernel.normed);
  EXPECT_EQ(model::add_rms_norm_composed(x.to(at::kFloat), {}, wide_gain.to(at::kFloat), 1e-5,
                                         DType::kBF16)
                .normed.scalar_type(),
            at::kBFloat16);
}

TEST(Composed_Loss, EqualsTheKernel) {
  const at::Tensor targets = index({3, 0, 16, 5});
  const at::Tensor h = random_tensor({4, 6}, 76);
  const at::Tensor head = random_tensor({17, 6}, 77) * 3;
  at::Tensor a = h.clone().set_requires_grad(true);
  torch::autograd::backward({model::cross_entropy_sum(a, head, targets)}, {});
  at::Tensor logits = h.matmul(head.t());
  const at::Tensor losses = model::reduce_loss_rows_composed(logits, targets, true);
  EXPECT_LT(max_difference(losses, model::cross_entropy_each(h, head, targets)), 1e-13);
  EXPECT_LT(max_difference(logits.matmul(head), a.grad()), 1e-12);
}

TEST(Threads_Reproducible, GradientsDoNotDependOnThem) {
  const at::Tensor cu = index({0, 700, 2000});
  const auto gradients = [&](int threads) {
    kda::set_num_threads(threads);
    at::Tensor x = random_tensor({2000, 48}, 47, at::kFloat).set_requires_grad(true);
    at::Tensor w = random_tensor({48, 1, 4}, 48, at::kFloat).set_requires_grad(true);
    at::Tensor gain = random_tensor({48}, 49, at::kFloat).set_requires_grad(true);
    at::Tensor head_gain = random_tensor({16}, 50, at::kFloat).set_requires_grad(true);
    const at::Tensor conv = model::short_conv(x, w, cu);
    const at::Tensor normed = model::add_rms_norm(conv, {}, gain, 1e-5, DType::kF32).normed;
    const at::Tensor out = model::gated_norm(normed.view({2000, 3, 16}), conv, head_gain, 1e-5);
    torch::autograd::backward({out}, {random_tensor({2000, 48}, 51, at::kFloat)});
    kda::set_num_threads(0);
    return Tensors{x.grad(), w.grad(), gain.grad(), head_gain.grad()};
  };
  const Tensors one = gradients(1);
  const Tensors two = gradients(2);
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(same_bits(one[i], two[i])) << i;
}

}  // namespace
}  // namespace kda::test
