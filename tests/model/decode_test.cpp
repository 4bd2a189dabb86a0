#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/atomic_file.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::CausalLM;
using model::DecodeState;
using model::KDAConfig;

// Logits after the last of `ids`, fed in pieces of `piece` tokens.
at::Tensor fed_in_pieces(const CausalLM& lm, const std::vector<std::int64_t>& ids,
                         std::int64_t piece, DecodeState& state) {
  at::Tensor logits;
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t begin = 0; begin < total; begin += piece) {
    const std::int64_t end = std::min(total, begin + piece);
    logits = lm.prefill(model::pack({{ids.begin() + begin, ids.begin() + end}}), state);
  }
  return logits;
}

TEST(Decode_Prefill, AnyPiecesEqualOneFullRun) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 20);
  for (const std::int64_t length : {200, 128, 3}) {
    const auto ids = random_ids(length, c.vocab_size, 21);
    const at::Tensor full = lm.logits(model::pack({ids}))[length - 1];
    for (const std::int64_t piece : {1, 16, 63, 64, 65, 128, 200}) {
      DecodeState state = lm.new_state(1);
      const at::Tensor logits = fed_in_pieces(lm, ids, piece, state);
      EXPECT_LT(max_difference(logits[0], full),
                1e-5 * std::max(1.0, full.abs().max().item<double>()))
          << length << " in pieces of " << piece;
      EXPECT_EQ(state.lengths(), std::vector<std::int64_t>{length});
    }
  }
}

TEST(Decode_Prefill, ShortPromptsOfEveryLength) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 22);
  const auto ids = random_ids(65, c.vocab_size, 23);
  const at::Tensor full = lm.logits(model::pack({ids}));
  for (std::int64_t length = 1; length <= 65; ++length) {
    DecodeState state = lm.new_state(1);
    const at::Tensor logits = fed_in_pieces(lm, {ids.begin(), ids.begin() + length}, 1000, state);
    EXPECT_LT(max_difference(logits[0], full[length - 1]), 2e-5) << length;
  }
}

TEST(Decode_Step, GreedyEqualsFullForwardOver512Tokens) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 24);
  std::vector<std::int64_t> ids = random_ids(5, c.vocab_size, 25);
  DecodeState state = lm.new_state(1);
  at::Tensor logits = lm.prefill(model::pack({ids}), state);
  std::vector<at::Tensor> cached;
  for (int i = 0; i < 512; ++i) {
    cached.push_back(logits[0]);
    const std::int64_t id = at::argmax(logits[0]).item<std::int64_t>();
    ids.push_back(id);
    logits = lm.step(index({id}), state);
  }
  const at::Tensor full = lm.logits(model::pack({ids}));
  double worst = 0;
  for (std::int64_t i = 0; i < 512; ++i) {
    const at::Tensor row = full[4 + i];
    ASSERT_EQ(at::argmax(row).item<std::int64_t>(), ids[static_cast<std::size_t>(5 + i)]) << i;
    worst = std::max(worst, max_difference(row, cached[static_cast<std::size_t>(i)]));
  }
  EXPECT_LT(worst, 1e-5 * std::max(1.0, full.abs().max().item<double>()));
}

// In bf16 a chunk and its tokens one by one round in different places, so they differ; the state is
// f32 in both. What must not happen is that decoding is the worse of the two, or drifts.
TEST(Decode_Step, Bf16IsAsNearToF32AsTheFullForwardAndDoesNotDrift) {
  const KDAConfig c = small_config();
  const CausalLM wide = make_model(c, DType::kF32);
  const CausalLM narrow = make_model(c, DType::kBF16);
  spread_weights(wide, 24);
  spread_weights(narrow, 24);
  constexpr std::int64_t kTokens = 512;
  const std::vector<std::int64_t> ids = random_ids(kTokens, c.vocab_size, 26);
  const at::Tensor exact = wide.logits(model::pack({ids}));
  const at::Tensor full = narrow.logits(model::pack({ids})).to(at::kFloat);
  DecodeState state = narrow.new_state(1);
  std::vector<at::Tensor> rows;
  for (const std::int64_t id : ids)
    rows.push_back(narrow.step(index({id}), state)[0].to(at::kFloat));
  const at::Tensor stepped = at::stack(rows);

  const auto rms = [](const at::Tensor& x) { return x.pow(2).mean().sqrt().item<double>(); };
  const at::Tensor full_error = full - exact;
  const at::Tensor step_error = stepped - exact;
  EXPECT_GT(rms(full_error), 0);
  EXPECT_LT(rms(step_error), 1.25 * rms(full_error));
  EXPECT_LT(rms(step_error.narrow(0, kTokens - 128, 128)), 1.5 * rms(step_error.narrow(0, 0, 128)));
  const at::Tensor differ = at::argmax(stepped, 1).ne(at::argmax(full, 1));
  const std::int64_t count = differ.sum().item<std::int64_t>();
  RecordProperty("largest_difference_of_logits", std::to_string(max_difference(stepped, full)));
  RecordProperty("largest_logit", std::to_string(exact.abs().max().item<double>()));
  RecordProperty("positions_with_another_best_token", std::to_string(count));
  RecordProperty("first_of_them",
                 count == 0 ? "none" : std::to_string(at::argmax(differ.to(at::kInt)).item<int>()));
  EXPECT_LT(count, kTokens / 8);  // near ties only
}

TEST(Decode_Rows, NeighboursOfAnyLengthChangeNothing) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 26);
  const auto short_prompt = random_ids(3, c.vocab_size, 27);
  const auto long_prompt = random_ids(40, c.vocab_size, 28);
  const auto continued = [&](const std::vector<std::vector<std::int64_t>>& prompts) {
    DecodeState state = lm.new_state(static_cast<std::int64_t>(prompts.size()));
    at::Tensor logits = lm.prefill(model::pack(prompts), state);
    std::vector<std::vector<std::int64_t>> out(prompts.size());
    for (int i = 0; i < 40; ++i) {
      const at::Tensor next = at::argmax(logits, 1);
      for (std::size_t n = 0; n < out.size(); ++n) {
        out[n].push_back(next[static_cast<std::int64_t>(n)].item<std::int64_t>());
      }
      logits = lm.step(next, state);
    }
    return out;
  };
  const auto together = continued({short_prompt, long_prompt});
  EXPECT_EQ(together[0], continued({short_prompt})[0]);
  EXPECT_EQ(together[1], continued({long_prompt})[0]);
  EXPECT_EQ(continued({long_prompt, short_prompt})[1], together[0]);
}

TEST(Decode_Rows, SomeRowsStepAndOthersKeepEveryBit) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 29);
  DecodeState state = lm.new_state(3);
  lm.prefill(model::pack({random_ids(4, 61, 30), random_ids(9, 61, 31), random_ids(2, 61, 32)}),
             state);
  DecodeState all = state.clone();
  const DecodeState before = state.clone();
  const at::Tensor some = lm.step_rows(index({5, 6}), {2, 0}, state);
  const at::Tensor every = lm.step(index({6, 7, 5}), all);
  EXPECT_LT(max_difference(some[0], every[2]), 1e-5);
  EXPECT_LT(max_difference(some[1], every[0]), 1e-5);
  EXPECT_EQ(state.lengths(), (std::vector<std::int64_t>{5, 9, 3}));
  for (std::size_t i = 0; i < state.layers().size(); ++i) {
    EXPECT_TRUE(same_bits(state.layers()[i].state_kv[1], before.layers()[i].state_kv[1]));
    EXPECT_TRUE(same_bits(state.layers()[i].conv_window[1], before.layers()[i].conv_window[1]));
    EXPECT_FALSE(same_bits(state.layers()[i].state_kv[0], before.layers()[i].state_kv[0]));
    EXPECT_LT(max_difference(state.layers()[i].state_kv[0], all.layers()[i].state_kv[0]), 1e-6);
  }
  error_of([&] { lm.step_rows(index({5, 6}), {1, 1}, state); }, ErrorCode::kInvalidArgument);
  error_of([&] { lm.step_rows(index({5}), {3}, state); }, ErrorCode::kInvalidArgument);
  error_of([&] { lm.step_rows(index({5}), {0, 1}, state); }, ErrorCode::kInvalidArgument);
}

TEST(Decode_Rows, RowsWithoutTokensAreLeftAlone) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 33);
  DecodeState state = lm.new_state(2);
  lm.prefill(model::pack({random_ids(4, 61, 34), random_ids(9, 61, 35)}), state);
  const DecodeState before = state.clone();
  const at::Tensor logits = lm.prefill({index({1, 2, 3}), index({0, 0, 3})}, state);
  EXPECT_EQ(logits[0].abs().max().item<float>(), 0.0F);
  EXPECT_GT(logits[1].abs().max().item<float>(), 0.0F);
  EXPECT_EQ(state.lengths(), (std::vector<std::int64_t>{4, 12}));
  for (std::size_t i = 0; i < state.layers().size(); ++i) {
    EXPECT_TRUE(same_bits(state.layers()[i].state_kv[0], before.layers()[i].state_kv[0]));
    EXPECT_TRUE(same_bits(state.layers()[i].conv_window[0], before.layers()[i].conv_window[0]));
  }
}

TEST(Decode_Rows, SelectAndReset) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 36);
  DecodeState state = lm.new_state(2);
  lm.prefill(model::pack({random_ids(4, 61, 37), random_ids(9, 61, 38)}), state);
  DecodeState beams = state.clone();
  beams.select_rows({1, 1, 0});
  EXPECT_EQ(beams.lengths(), (std::vector<std::int64_t>{9, 9, 4}));
  const at::Tensor logits = lm.step(index({3, 3, 4}), beams);
  const at::Tensor plain = lm.step(index({4, 3}), state);
  EXPECT_LT(max_difference(logits[0], logits[1]), 1e-6);
  EXPECT_LT(max_difference(logits[0], plain[1]), 1e-5);
  EXPECT_LT(max_difference(logits[2], plain[0]), 1e-5);
  beams.reset_rows({1});
  EXPECT_EQ(beams.lengths(), (std::vector<std::int64_t>{10, 0, 5}));
  DecodeState fresh = lm.new_state(1);
  const at::Tensor first = lm.step(index({8}), fresh);
  EXPECT_LT(max_difference(lm.step(index({1, 8, 2}), beams)[1], first[0]), 1e-5);
  error_of([&] { beams.select_rows({3}); }, ErrorCode::kInvalidArgument);
  error_of([&] { beams.reset_rows({-1}); }, ErrorCode::kInvalidArgument);
}

TEST(Decode_File, RestoredContinuesAsUninterrupted) {
  const TemporaryFolder folder;
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 39);
  const auto ids = random_ids(70, c.vocab_size, 40);
  for (const std::int64_t saved_after : {0, 1, 63, 64, 65}) {
    DecodeState state = lm.new_state(1);
    if (saved_after > 0) lm.prefill(model::pack({{ids.begin(), ids.begin() + saved_after}}), state);
    const std::string path = folder.file("state" + std::to_string(saved_after));
    state.save(path, lm);
    const CausalLM again = make_model(c, DType::kF32);  // as a new process would
    spread_weights(again, 39);
    DecodeState restored = DecodeState::load(path, again);
    EXPECT_EQ(restored.lengths(), state.lengths());
    const auto rest = model::pack({{ids.begin() + saved_after, ids.end()}});
    EXPECT_TRUE(same_bits(again.prefill(rest, restored), lm.prefill(rest, state))) << saved_after;
  }
}

TEST(Decode_File, OtherModelsAndDamageAreRefused) {
  const TemporaryFolder folder;
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32, 1);
  DecodeState state = lm.new_state(2);
  lm.prefill(model::pack({random_ids(4, 61, 41), random_ids(9, 61, 42)}), state);
  const std::string path = folder.file("state");
  state.save(path, lm);
  const CausalLM other = make_model(c, DType::kF32, 2);  // same shape, other weights
  expect_contains(error_of([&] { DecodeState::load(path, other); }, ErrorCode::kInvalidArgument),
                  "another model");
  const std::int64_t lengths[] = {4, 9};
  std::string bytes = io::read_file(path);
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(lengths), sizeof lengths));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 8, 8, '\xff');
  io::write_file_atomic(path, bytes);
  expect_contains(error_of([&] { DecodeState::load(path, lm); }, ErrorCode::kInvalidArgument),
                  "lengths: expected counts of tokens, got -1");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  error_of([&] { DecodeState::load(path, lm); }, ErrorCode::kIo);
  error_of([&] { DecodeState::load(folder.file("absent"), lm); }, ErrorCode::kIo);
}

TEST(Decode_Arguments, StateOfWrongSizeIsRefused) {
  const CausalLM lm = make_model(small_config(), DType::kF32);
  DecodeState state = lm.new_state(2);
  expect_contains(error_of(
                      [&] {
                        lm.prefill(model::pack({{1, 2}}), state);
                      },
                      ErrorCode::kInvalidArgument),
                  "rows");
  DecodeState empty;
  error_of([&] { lm.step(index({}), empty); }, ErrorCode::kInvalidArgument);
  error_of([&] { lm.step(index({99, 1}), state); }, ErrorCode::kInvalidArgument);
  error_of([&] { lm.new_state(-1); }, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kda::test
