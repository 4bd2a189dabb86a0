#include "model/weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/model_test_support.h"
#include "support/allocated.h"

namespace kda::test {
namespace {

using model::CausalLM;
using model::KDAConfig;

using NamedTensors = std::map<std::string, at::Tensor>;

NamedTensors tensors_of(const CausalLM& lm) {
  NamedTensors all;
  for (const model::Parameter& p : lm.parameters())
    all[p.name] = p.tensor.detach().clone();
  return all;
}

void write(const std::string& path, const NamedTensors& tensors) {
  std::vector<io::StSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    const io::StDtype dtype = tensor.scalar_type() == at::kBFloat16 ? io::StDtype::kBF16
                              : tensor.scalar_type() == at::kDouble ? io::StDtype::kF64
                              : tensor.scalar_type() == at::kLong   ? io::StDtype::kI64
                                                                    : io::StDtype::kF32;
    specs.push_back({name, dtype, tensor.sizes().vec()});
  }
  io::SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.contiguous();
    writer.write_tensor(name,
                        {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  writer.commit();
}

void expect_same(const CausalLM& a, const CausalLM& b) {
  const NamedTensors left = tensors_of(a);
  const NamedTensors right = tensors_of(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left)
    EXPECT_TRUE(same_bits(tensor, right.at(name))) << name;
}

class Weights : public testing::Test {
 protected:
  TemporaryFolder folder;
  const std::string path = folder.file("w.safetensors");
};

TEST_F(Weights, RoundTripIsBitForBit) {
  for (const bool tied : {true, false}) {
    KDAConfig c = small_config();
    c.tie_embeddings = tied;
    c.full_rank_gate = tied;
    const CausalLM lm = make_model(c, DType::kF32, 1);
    spread_weights(lm, 70);
    model::save_model(lm, folder.file("m"), {});
    std::vector<std::string> warnings;
    const CausalLM loaded = model::load_model(folder.file("m"), {}, &warnings);
    EXPECT_TRUE(warnings.empty());
    EXPECT_EQ(loaded.config(), c);
    expect_same(lm, loaded);
    EXPECT_EQ(lm.fingerprint(), loaded.fingerprint());
    const auto batch = model::pack({random_ids(50, c.vocab_size, 71)});
    EXPECT_TRUE(same_bits(lm.logits(batch), loaded.logits(batch)));
  }
}

TEST_F(Weights, NamesAndTypesInTheFile) {
  KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  model::SaveOptions options;
  options.type = model::StoredType::kBF16;
  options.metadata = {{"step", "7"}};
  model::save_weights(lm, path, options);
  const auto file = io::SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_FALSE(file.contains("lm_head.weight"));  // tied: stored once
  EXPECT_EQ(file.names().size(), lm.parameters().size());
  const auto shape = [&](const std::string& name) { return file.info(name).shape; };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape("model.embed_tokens.weight"), (Shape{61, 24}));
  EXPECT_EQ(shape("model.norm.weight"), (Shape{24}));
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(shape(layer + "input_layernorm.weight"), (Shape{24}));
  EXPECT_EQ(shape(layer + "post_attention_layernorm.weight"), (Shape{24}));
  EXPECT_EQ(shape(layer + "self_attn.q_proj.weight"), (Shape{64, 24}));
  EXPECT_EQ(shape(layer + "self_attn.k_conv1d.weight"), (Shape{64, 1, 4}));
  EXPECT_EQ(shape(layer + "self_attn.v_proj.weight"), (Shape{64, 24}));
  EXPECT_EQ(shape(layer + "self_attn.f_a_proj.weight"), (Shape{8, 24}));
  EXPECT_EQ(shape(layer + "self_attn.f_b_proj.weight"), (Shape{128, 8}));
  EXPECT_EQ(shape(layer + "self_attn.b_proj.weight"), (Shape{4, 24}));
  EXPECT_EQ(shape(layer + "self_attn.g_proj.weight"), (Shape{64, 24}));
  EXPECT_EQ(shape(layer + "self_attn.o_norm.weight"), (Shape{16}));
  EXPECT_EQ(shape(layer + "self_attn.o_proj.weight"), (Shape{24, 64}));
  EXPECT_EQ(shape(layer + "self_attn.A_log"), (Shape{4}));
  EXPECT_EQ(shape(layer + "self_attn.dt_bias"), (Shape{128}));
  EXPECT_EQ(shape(layer + "mlp.gate_proj.weight"), (Shape{40, 24}));
  EXPECT_EQ(shape(layer + "mlp.down_proj.weight"), (Shape{24, 40}));
  EXPECT_EQ(file.info(layer + "mlp.up_proj.weight").dtype, io::StDtype::kBF16);
  EXPECT_EQ(file.info(layer + "self_attn.A_log").dtype, io::StDtype::kF32);
  EXPECT_EQ(file.info(layer + "self_attn.dt_bias").dtype, io::StDtype::kF32);
}

TEST_F(Weights, AllProblemsAreListedAndNothingIsLoaded) {
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  NamedTensors tensors = tensors_of(make_model(small_config(), DType::kF32, 2));
  tensors.erase("model.norm.weight");
  tensors["model.layers.0.self_attn.q_proj.weight"] = random_tensor({64, 23}, 1, at::kFloat);
  tensors["model.layers.7.extra"] = random_tensor({1}, 2, at::kFloat);
  tensors["model.layers.0.mlp.up_proj.weight"] = index({1, 2});
  write(path, tensors);
  const NamedTensors before = tensors_of(lm);
  const std::string text =
      error_of([&] { model::load_weights(lm, path); }, ErrorCode::kInvalidArgument);
  expect_contains(text, "model.norm.weight: missing");
  expect_contains(text, "model.layers.0.self_attn.q_proj.weight: expected [64,24]");
  expect_contains(text, "[64,23]");
  expect_contains(text, "model.layers.7.extra: not part of this model");
  expect_contains(text, "I64");
  for (const auto& [name, tensor] : tensors_of(lm))
    EXPECT_TRUE(same_bits(tensor, before.at(name)));
}

TEST_F(Weights, LongListsAreCut) {
  CausalLM lm = make_model(small_config(), DType::kF32);
  write(path, {{"stranger", random_tensor({1}, 3, at::kFloat)}});
  const std::string text =
      error_of([&] { model::load_weights(lm, path); }, ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
  expect_contains(text, "more");
}

TEST_F(Weights, LenientLoadWarnsButNeverReshapes) {
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  NamedTensors tensors = tensors_of(make_model(small_config(), DType::kF32, 2));
  tensors.erase("model.norm.weight");
  tensors["extra"] = random_tensor({1}, 4, at::kFloat);
  write(path, tensors);
  model::LoadOptions options;
  options.strict = false;
  const auto warnings = model::load_weights(lm, path, options);
  ASSERT_EQ(warnings.size(), 2U);
  expect_contains(warnings[0] + warnings[1], "model.norm.weight");
  expect_contains(warnings[0] + warnings[1], "extra");
  tensors["model.layers.0.self_attn.q_proj.weight"] = random_tensor({64, 23}, 1, at::kFloat);
  write(path, tensors);
  error_of([&] { model::load_weights(lm, path, options); }, ErrorCode::kInvalidArgument);
}

TEST_F(Weights, ALogInEveryStoredForm) {
  const std::string name = "model.layers.0.self_attn.A_log";
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  NamedTensors tensors = tensors_of(lm);
  const at::Tensor value = random_tensor({4}, 5, at::kFloat);
  const auto loads = [&](const at::Tensor& stored) {
    tensors[name] = stored;
    write(path, tensors);
    EXPECT_TRUE(model::load_weights(lm, path).empty());
    EXPECT_TRUE(same_bits(tensors_of(lm).at(name), value));
  };
  loads(value);
  loads(value.view({1, 1, 4, 1}));
  loads(at::cat({value, at::zeros({124}, value.options())}));
  for (const at::Tensor& bad :
       {at::cat({value, value}), value.narrow(0, 0, 3), value.view({4, 1})}) {
    tensors[name] = bad;
    write(path, tensors);
    expect_contains(error_of([&] { model::load_weights(lm, path); }, ErrorCode::kInvalidArgument),
                    name);
  }
}

TEST_F(Weights, Bf16GateParametersAreWidenedWithAWarning) {
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  NamedTensors tensors = tensors_of(lm);
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("A_log") || name.ends_with("dt_bias")) tensor = tensor.to(at::kBFloat16);
  }
  write(path, tensors);
  const auto warnings = model::load_weights(lm, path);
  EXPECT_EQ(warnings.size(), 4U);
  expect_contains(warnings[0], "BF16");
  for (const model::Parameter& p : lm.parameters()) {
    EXPECT_EQ(p.tensor.scalar_type(), at::kFloat) << p.name;
  }
  model::save_weights(lm, path, {model::StoredType::kBF16, {}});
  EXPECT_EQ(io::SafetensorsFile::open(path).info("model.layers.1.self_attn.A_log").dtype,
            io::StDtype::kF32);
}

TEST_F(Weights, TiedHeadInForeignFiles) {
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  NamedTensors tensors = tensors_of(lm);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone();
  write(path, tensors);
  const auto warnings = model::load_weights(lm, path);
  ASSERT_EQ(warnings.size(), 1U);
  expect_contains(warnings[0], "lm_head.weight");
  tensors["lm_head.weight"].add_(1);
  write(path, tensors);
  expect_contains(error_of([&] { model::load_weights(lm, path); }, ErrorCode::kInvalidArgument),
                  "lm_head.weight");
  tensors.erase("model.embed_tokens.weight");
  write(path, tensors);
  expect_contains(error_of([&] { model::load_weights(lm, path); }, ErrorCode::kInvalidArgument),
                  "model.embed_tokens.weight: missing");
}

TEST_F(Weights, ParametersKeepTheirMemory) {
  CausalLM lm = make_model(small_config(), DType::kF32, 1);
  const CausalLM other = make_model(small_config(), DType::kF32, 2);
  model::save_weights(other, path);
  std::vector<const void*> before;
  for (const model::Parameter& p : lm.parameters())
    before.push_back(p.tensor.const_data_ptr());
  model::load_weights(lm, path);
  std::size_t i = 0;
  for (const model::Parameter& p : lm.parameters()) {
    EXPECT_EQ(p.tensor.const_data_ptr(), before[i++]) << p.name;
    EXPECT_TRUE(p.tensor.requires_grad());
  }
  expect_same(lm, other);
}

TEST_F(Weights, LoadingTwentyTimesKeepsNothing) {
  KDAConfig c = KDAConfig::preset("toy");
  c.num_layers = 1;  // 21 MB
  const CausalLM lm = make_model(c, DType::kF32, 1);
  const std::string saved = folder.file("m");
  model::save_model(lm, saved);
  const auto load = [&] { return model::load_model(saved, {}).num_parameters(); };
  load();
  const std::int64_t before = allocated_bytes();
  ASSERT_GT(before, 4 * lm.num_parameters());  // this model: the count sees tensors
  for (int i = 0; i < 20; ++i)
    load();
  EXPECT_LT(allocated_bytes() - before, 4 * lm.num_parameters() / 20);
  EXPECT_EQ(mapped_files().find(saved), std::string::npos);
}

}  // namespace
}  // namespace kda::test
