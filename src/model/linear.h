/// y = x W^T for one or several weights that share their input.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace kda::model {

/// x [tokens,in] in the activation dtype; each weight [out_i,in] in f32 (f64 with f64 activations).
/// Returns one [tokens,out_i] per weight, column slices of one matrix product. With bf16
/// activations the weights are rounded to bf16 and the products accumulate in f32, where the
/// processor has bf16 products; elsewhere f32 products are used, which are only more exact.
/// Gradients of weights come in the weights' dtype.
std::vector<at::Tensor> linear(const at::Tensor& x, at::TensorList weights);

/// The same for one weight.
at::Tensor linear_one(const at::Tensor& x, const at::Tensor& weight);

/// The three products behind it, without autograd. `out`-less: results in the dtype of x or dy
/// (weight gradient: f32, f64 with f64).
at::Tensor product_forward(const at::Tensor& x, const at::Tensor& weight);
at::Tensor product_input_gradient(const at::Tensor& dy, const at::Tensor& weight);
at::Tensor product_weight_gradient(const at::Tensor& dy, const at::Tensor& x);

/// Whether bf16 matrix products are fast on this device; decides how bf16 models compute.
bool has_native_bf16_products(const at::Device& device);

}  // namespace kda::model
