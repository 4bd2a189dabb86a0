#include "train/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "kda/error.h"
#include "train/dataset.h"
#include "train/fixture.h"
#include "train/signals.h"

namespace kda::train {
namespace {

using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tokenizer;

std::shared_ptr<const text::TokenDataset> heldout(const ScratchFolder& folder) {
  RecordingReporter reporter;
  return prepare_data(find_data(testing::corpus_folder()), {folder / "cache", 0}, tokenizer(),
                      reporter)
      .heldout;
}

model::CausalLM tiny_model() {
  model::KDAConfig config = model::KDAConfig::preset("tiny");
  config.vocab_size = tokenizer().vocab_size();
  model::ModelOptions options;
  options.seed = 3;
  return {config, options};
}

TEST(Evaluate, WholeFile_EqualsDocumentByDocument) {
  ScratchFolder folder;
  const auto data = heldout(folder);
  const model::CausalLM model = tiny_model();
  RecordingReporter reporter;
  // Rows long enough that no document is cut: the packing must then not matter at all.
  std::int64_t longest = 0;
  double sum = 0;
  std::int64_t targets = 0;
  std::int64_t bytes = 0;
  for (std::uint64_t d = 0; d < data->num_documents(); ++d) {
    std::vector<std::int64_t> ids(data->document_tokens(d));
    data->copy(d, 0, ids);
    longest = std::max(longest, static_cast<std::int64_t>(ids.size()));
    std::vector<std::int64_t> next(ids.begin() + 1, ids.end());
    for (std::int64_t id : next)
      bytes += tokenizer().token_bytes()[static_cast<std::size_t>(id)];
    next.push_back(model::kIgnoreTarget);
    at::Tensor target = model::pack({ids}).ids.clone();
    for (std::size_t i = 0; i < next.size(); ++i) {
      target.view(-1)[static_cast<std::int64_t>(i)] = next[i];
    }
    sum += model.token_losses(model::pack({ids}), target).sum().item<double>();
    targets += static_cast<std::int64_t>(ids.size()) - 1;
  }
  EvalOptions options;
  options.batch = 1;
  options.seq_len = 4096;
  ASSERT_LT(static_cast<std::int64_t>(data->num_tokens()), options.seq_len);
  const EvalResult result = evaluate(model, data, tokenizer(), options, reporter);
  EXPECT_EQ(result.targets, targets);
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(result.bytes, static_cast<std::int64_t>(data->text_bytes()));
  EXPECT_NEAR(result.loss, sum / static_cast<double>(targets), 1e-5);
  EXPECT_NEAR(result.bits_per_byte, sum / std::log(2.0) / static_cast<double>(bytes), 1e-5);
  // An untrained model is about as good as guessing.
  EXPECT_NEAR(result.loss, std::log(static_cast<double>(tokenizer().vocab_size())), 0.2);
}

TEST(Evaluate, Part_IsEvenlySpacedAndRepeatable) {
  ScratchFolder folder;
  const auto data = heldout(folder);
  const model::CausalLM model = tiny_model();
  RecordingReporter reporter;
  EvalOptions options;
  options.batch = 1;
  options.seq_len = 32;
  const EvalResult all = evaluate(model, data, tokenizer(), options, reporter);
  options.max_tokens = 100;  // 4 batches of 32
  const EvalResult part = evaluate(model, data, tokenizer(), options, reporter);
  EXPECT_LT(part.targets, all.targets);
  EXPECT_GE(part.targets, 3 * 24);
  EXPECT_LE(part.targets, 4 * 32);
  EXPECT_EQ(evaluate(model, data, tokenizer(), options, reporter).loss, part.loss);
  options.max_tokens = 1'000'000;
  EXPECT_EQ(evaluate(model, data, tokenizer(), options, reporter).targets, all.targets);
}

TEST(Evaluate, StopRequest_EndsIt) {
  ScratchFolder folder;
  const auto data = heldout(folder);
  const model::CausalLM model = tiny_model();
  RecordingReporter reporter;
  request_stop(SIGINT);
  EXPECT_THROW(evaluate(model, data, tokenizer(), {}, reporter), Interrupted);
}

TEST(Evaluate, NonFiniteWeights_AreNamedNotAveraged) {
  ScratchFolder folder;
  const auto data = heldout(folder);
  const model::CausalLM model = tiny_model();
  for (const model::Parameter& p : model.parameters()) {
    if (p.name.find("layers.1.") != std::string::npos) {
      p.tensor.detach().view(-1)[0] = std::nanf("");
      break;
    }
  }
  RecordingReporter reporter;
  const std::string text = testing::error_text(
      ErrorCode::kNonFinite, [&] { evaluate(model, data, tokenizer(), {}, reporter); });
  EXPECT_NE(text.find("layers.1"), std::string::npos) << text;
}

}  // namespace
}  // namespace kda::train
