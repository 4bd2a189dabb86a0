// Random tensors, small configs and gradient checks for the tests of the model layer.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/philox.h"
#include "model/tensors.h"

namespace kda::test {

// Uniform in (-1,1), the same on every machine.
inline at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed,
                                at::ScalarType type = at::kDouble) {
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  double* out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    out[i] = 2.0 * model::philox_uniforms(seed, 7, static_cast<std::uint64_t>(i))[0] - 1.0;
  }
  return values.to(type);
}

inline std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t vocab,
                                            std::uint64_t seed) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = model::philox_uniforms(seed, 11, static_cast<std::uint64_t>(i))[0];
    ids.push_back(static_cast<std::int64_t>(u * static_cast<double>(vocab)));
  }
  return ids;
}

inline at::Tensor index(const std::vector<std::int64_t>& values) {
  return model::index_tensor(values);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); }

// Two layers, grouped value heads, K != V: nothing here is square by accident.
inline model::KDAConfig small_config() {
  model::KDAConfig c;
  c.vocab_size = 61;
  c.hidden_size = 24;
  c.num_layers = 2;
  c.intermediate_size = 40;
  c.num_heads = 2;
  c.num_v_heads = 4;
  c.head_k_dim = 32;
  c.head_v_dim = 16;
  c.gate_low_rank = 8;
  c.chunk = 64;
  return c;
}

// KDA, KDA, KDA, MLA and a last MLA; one dense layer, then experts; nothing square by accident.
inline model::KDAConfig small_k3_config(model::AttnResMode mode = model::AttnResMode::kOff) {
  model::KDAConfig c = small_config();
  c.num_layers = 5;
  c.full_attn_period = 4;
  c.mla = {3, 10, 16, 8, 4, 12, true, 1e-6};
  c.moe.num_experts = 6;
  c.moe.num_experts_per_token = 2;
  c.moe.num_shared_experts = 1;
  c.moe.intermediate_size = 12;
  c.moe.latent_size = 16;
  c.moe.latent_norm = true;
  c.first_dense_layers = 1;
  c.activation.kind = model::ActivationKind::kSitu;
  c.attn_res = {mode, mode == model::AttnResMode::kBlock ? 2 : 0};
  return c;
}

inline model::CausalLM make_model(const model::KDAConfig& config, DType compute,
                                  std::uint64_t seed = 1) {
  model::ModelOptions options;
  options.compute = compute;
  options.seed = seed;
  return model::CausalLM(config, options);
}

// Replaces the initial weights by larger ones, so that no path of the model is negligible.
inline void spread_weights(const model::CausalLM& lm, std::uint64_t seed) {
  for (const model::Parameter& p : lm.parameters()) {
    at::Tensor flat = p.tensor.detach();
    const at::Tensor noise = random_tensor(flat.sizes(), seed++, flat.scalar_type());
    if (p.kind == model::ParameterKind::kNorm) {
      flat.copy_(noise * 0.3 + 1.0);
    } else if (p.kind == model::ParameterKind::kGate) {
      flat.add_(noise * 0.5);
    } else {
      flat.copy_(noise * 0.4);
    }
  }
}

// The text of the kda::Error that `call` throws; fails the test when it does not.
inline std::string error_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

// A folder that disappears with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = std::filesystem::temp_directory_path() /
            ("kda-model-test-" + std::to_string(::getpid()) + "-" + std::to_string(count_++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

// Central differences of sum(f(inputs) * weight) against autograd, in f64. `inputs` are leaves.
void check_gradients(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& f,
    std::vector<at::Tensor> inputs, double tolerance = 1e-7);

}  // namespace kda::test
