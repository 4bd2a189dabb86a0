// Decoding of the K3-like model: recurrent states, convolution windows and latents together.
#include <ATen/ops/argmax.h>
#include <gtest/gtest.h>

#include "model/generate.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::AttnResMode;
using model::CausalLM;
using model::DecodeState;
using model::KDAConfig;

using Ids = std::vector<std::int64_t>;

at::Tensor in_pieces(const CausalLM& lm, const Ids& ids, std::int64_t piece, DecodeState& state) {
  at::Tensor logits;
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t begin = 0; begin < total; begin += piece) {
    const std::int64_t end = std::min(total, begin + piece);
    logits = lm.prefill(model::pack({{ids.begin() + begin, ids.begin() + end}}), state);
  }
  return logits;
}

TEST(K3Decode_Prefill, AnyPiecesEqualOneFullRun) {
  for (const AttnResMode mode : {AttnResMode::kOff, AttnResMode::kBlock, AttnResMode::kFull}) {
    const KDAConfig c = small_k3_config(mode);
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 70);
    const auto ids = random_ids(200, c.vocab_size, 71);
    const at::Tensor full = lm.logits(model::pack({ids}))[199];
    for (const std::int64_t piece : {1, 16, 63, 64, 65, 200}) {
      DecodeState state = lm.new_state(1);
      const at::Tensor logits = in_pieces(lm, ids, piece, state);
      EXPECT_LT(max_difference(logits[0], full), 1e-10) << name_of(mode) << " " << piece;
      EXPECT_EQ(state.lengths(), Ids{200});
    }
  }
}

TEST(K3Decode_Step, GreedyEqualsFullForward) {
  const KDAConfig c = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 72);
  Ids ids = random_ids(5, c.vocab_size, 73);
  DecodeState state = lm.new_state(1);
  at::Tensor logits = lm.prefill(model::pack({ids}), state);
  std::vector<at::Tensor> cached;
  for (int i = 0; i < 150; ++i) {
    cached.push_back(logits[0]);
    ids.push_back(at::argmax(logits[0]).item<std::int64_t>());
    logits = lm.step(index({ids.back()}), state);
  }
  const at::Tensor full = lm.logits(model::pack({ids}));
  for (std::int64_t i = 0; i < 150; ++i) {
    const at::Tensor row = full[4 + i];
    ASSERT_LT(max_difference(row, cached[static_cast<std::size_t>(i)]),
              2e-5 * std::max(1.0, row.abs().max().item<double>()))
        << i;
  }
}

TEST(K3Decode_Rows, NeighboursOfAnyLengthChangeNothing) {
  const KDAConfig c = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = make_model(c, DType::kF64);
  spread_weights(lm, 74);
  const Ids prompts[] = {random_ids(3, 61, 75), random_ids(70, 61, 76), random_ids(1, 61, 77)};
  model::GenerateOptions options;
  options.max_new_tokens = 12;
  options.prefill_piece = 16;
  const auto together = model::generate(lm, {prompts[0], prompts[1], prompts[2]}, options);
  for (std::size_t n = 0; n < 3; ++n)
    EXPECT_EQ(together[n].ids, model::generate(lm, {prompts[n]}, options)[0].ids) << n;
}

TEST(K3Decode_Rows, RowsWithoutTokensAreLeftAlone) {
  const KDAConfig c = small_k3_config();
  const CausalLM lm = make_model(c, DType::kF64);
  spread_weights(lm, 88);
  DecodeState state = lm.new_state(3);  // the first row has never seen a token
  lm.prefill({index(random_ids(13, 61, 89)), index({0, 0, 4, 13})}, state);
  const DecodeState before = state.clone();
  DecodeState alone = state.clone();
  alone.select_rows({2});
  const at::Tensor logits = lm.prefill({index({1, 2, 3}), index({0, 0, 0, 3})}, state);
  EXPECT_EQ(logits.narrow(0, 0, 2).abs().max().item<double>(), 0.0);
  EXPECT_LT(max_difference(logits[2], lm.prefill(model::pack({{1, 2, 3}}), alone)[0]), 1e-11);
  EXPECT_EQ(state.lengths(), (Ids{0, 4, 12}));
  for (const std::int64_t row : {0, 1}) {
    EXPECT_TRUE(same_bits(state.layers()[3].latent[row], before.layers()[3].latent[row]));
    EXPECT_TRUE(same_bits(state.layers()[0].state_kv[row], before.layers()[0].state_kv[row]));
  }
}

TEST(K3Decode_Rows, SomeRowsStepSelectAndReset) {
  const KDAConfig c = small_k3_config();
  const CausalLM lm = make_model(c, DType::kF64);
  spread_weights(lm, 78);
  DecodeState state = lm.new_state(3);
  lm.prefill(model::pack({random_ids(4, 61, 79), random_ids(70, 61, 80), random_ids(2, 61, 81)}),
             state);
  DecodeState all = state.clone();
  const DecodeState before = state.clone();
  const at::Tensor some = lm.step_rows(index({5, 6}), {2, 0}, state);
  const at::Tensor every = lm.step(index({6, 7, 5}), all);
  EXPECT_LT(max_difference(some[0], every[2]), 1e-11);
  EXPECT_LT(max_difference(some[1], every[0]), 1e-11);
  EXPECT_EQ(state.lengths(), (Ids{5, 70, 3}));
  EXPECT_EQ(all.lengths(), (Ids{5, 71, 3}));
  const at::Tensor& latent = state.layers()[3].latent;
  EXPECT_FALSE(state.layers()[3].state_kv.defined());
  EXPECT_EQ(latent.size(2), 20);
  EXPECT_TRUE(same_bits(latent[1].narrow(0, 0, 70), before.layers()[3].latent[1].narrow(0, 0, 70)));
  EXPECT_GT(latent[0][4].abs().max().item<double>(), 0.0);
  EXPECT_EQ(latent[0][5].abs().max().item<double>(), 0.0);

  DecodeState beams = state.clone();
  beams.select_rows({2, 1, 1});
  EXPECT_EQ(beams.lengths(), (Ids{3, 70, 70}));
  const at::Tensor logits = lm.step(index({9, 8, 8}), beams);
  EXPECT_LT(max_difference(logits[1], logits[2]), 1e-12);
  EXPECT_LT(max_difference(logits[1], lm.step_rows(index({8}), {1}, state)[0]), 1e-11);
  beams.reset_rows({1});
  EXPECT_EQ(beams.layers()[4].latent[1].abs().max().item<double>(), 0.0);
  DecodeState fresh = lm.new_state(1);
  const at::Tensor first = lm.step(index({8}), fresh);
  EXPECT_LT(max_difference(lm.step(index({1, 8, 2}), beams)[1], first[0]), 1e-11);
}

TEST(K3Decode_File, RestoredContinuesAsUninterrupted) {
  const TemporaryFolder folder;
  const KDAConfig c = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 82);
  const auto ids = random_ids(70, c.vocab_size, 83);
  for (const std::int64_t saved_after : {0, 1, 63, 64, 65}) {
    DecodeState state = lm.new_state(1);
    if (saved_after > 0) lm.prefill(model::pack({{ids.begin(), ids.begin() + saved_after}}), state);
    const std::string path = folder.file("state" + std::to_string(saved_after));
    state.save(path, lm);
    DecodeState restored = DecodeState::load(path, lm);
    EXPECT_EQ(restored.lengths(), state.lengths());
    const auto rest = model::pack({{ids.begin() + saved_after, ids.end()}});
    EXPECT_TRUE(same_bits(lm.prefill(rest, restored), lm.prefill(rest, state))) << saved_after;
  }
}

TEST(K3Decode_File, AnotherModelIsRefused) {
  const TemporaryFolder folder;
  const KDAConfig c = small_k3_config();
  CausalLM lm = make_model(c, DType::kF32, 1);
  DecodeState state = lm.new_state(2);
  lm.prefill(model::pack({random_ids(4, 61, 84), random_ids(9, 61, 85)}), state);
  state.save(folder.file("state"), lm);
  const auto refused = [&](const CausalLM& other) {
    expect_contains(error_of([&] { DecodeState::load(folder.file("state"), other); },
                             ErrorCode::kInvalidArgument),
                    "another model");
  };
  refused(make_model(c, DType::kF32, 2));
  refused(make_model(small_k3_config(AttnResMode::kBlock), DType::kF32, 1));
  at::Tensor bias = lm.buffers()[0].tensor;  // routes otherwise: another model too
  bias[0].add_(0.5);
  refused(lm);
}

TEST(K3Decode_Memory, BytesFollowTheFormula) {
  const KDAConfig c = small_k3_config();
  const CausalLM lm = make_model(c, DType::kF32);
  DecodeState state = lm.new_state(2);
  const std::int64_t empty = state.size_bytes();
  lm.prefill(model::pack({random_ids(64, 61, 86), random_ids(1, 61, 87)}), state);
  EXPECT_EQ(state.size_bytes() - empty, 2 * 2 * 64 * 20 * 4);  // rows, layers, tokens, rho+r, f32
}

}  // namespace
}  // namespace kda::test
