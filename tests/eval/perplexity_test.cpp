#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "model/model_test_support.h"
#include "text/text_test_support.h"
#include "text/tokenizer_fixture.h"

namespace kda::test {
namespace {

using eval::measure_perplexity;
using eval::Perplexity;
using eval::PerplexityOptions;

struct World {
  const text::Tokenizer& tokenizer = small_tokenizer();
  model::CausalLM model;
  TempFolder folder;
  Documents documents;
  std::shared_ptr<const text::TokenDataset> data;

  World() : model(make()) {
    for (const std::string& sentence : sentences(9, 5)) {
      std::vector<std::int32_t> ids{tokenizer.info().bos_id};
      for (const std::int32_t id : tokenizer.encode(sentence))
        ids.push_back(id);
      ids.push_back(tokenizer.eos_id());
      documents.push_back(ids);
    }
    data = dataset(folder, documents, static_cast<std::uint32_t>(tokenizer.vocab_size()));
  }

  static model::CausalLM make() {
    model::KDAConfig config = small_config();
    config.vocab_size = small_tokenizer().vocab_size();
    config.initializer_range = 0.2;
    return make_model(config, DType::kF32, 4);
  }

  std::int64_t targets() const {
    std::int64_t count = 0;
    for (const auto& ids : documents)
      count += static_cast<std::int64_t>(ids.size()) - 1;
    return count;
  }
};

const World& world() {
  static const World made;
  return made;
}

Perplexity measure(const PerplexityOptions& options) {
  return measure_perplexity(world().model, world().data, world().tokenizer, options);
}

// Document by document, straight from the model: rows long enough to hold each whole.
TEST(Perplexity_AllUnits, AreOfTheSameTokens) {
  const World& w = world();
  double sum = 0;
  std::int64_t bytes = 0;
  for (const auto& ids : w.documents) {
    const std::vector<std::int64_t> inputs(ids.begin(), ids.end() - 1);
    const std::vector<std::int64_t> targets(ids.begin() + 1, ids.end());
    sum += w.model.token_losses(model::pack({inputs}), index(targets)).sum().item<double>();
    for (const std::int64_t id : targets)
      bytes += w.tokenizer.token_bytes()[static_cast<std::size_t>(id)];
  }
  PerplexityOptions options;
  options.seq_len = 4096;
  const Perplexity got = measure(options);
  EXPECT_EQ(got.tokens, w.targets());
  EXPECT_EQ(got.available, w.targets());
  EXPECT_EQ(got.bytes, bytes);
  EXPECT_NEAR(got.loss, sum / static_cast<double>(w.targets()), 1e-5);
  EXPECT_NEAR(got.perplexity(), std::exp(got.loss), 1e-9);
  EXPECT_NEAR(got.bits_per_byte, sum / std::numbers::ln2 / static_cast<double>(bytes), 1e-4);
}

TEST(Perplexity_MaxTokens, IsExact) {
  const World& w = world();
  for (const std::int64_t wanted : {std::int64_t{1}, std::int64_t{7}, std::int64_t{50},
                                    w.targets() - 1, w.targets(), w.targets() + 100}) {
    for (const std::int64_t batch : {1, 4}) {
      for (const std::int64_t seq_len : {8, 33}) {
        PerplexityOptions options;
        options.batch = batch;
        options.seq_len = seq_len;
        options.max_tokens = wanted;
        const Perplexity got = measure(options);
        EXPECT_EQ(got.tokens, std::min(wanted, w.targets())) << wanted << " " << batch;
        EXPECT_TRUE(std::isfinite(got.loss));
      }
    }
  }
}

TEST(Perplexity_Batch, ChangesNothing) {
  PerplexityOptions options;
  options.seq_len = 16;
  options.max_tokens = 100;
  options.batch = 1;
  const Perplexity one = measure(options);
  options.batch = 5;
  const Perplexity five = measure(options);
  EXPECT_NEAR(one.loss, five.loss, 1e-5);
  EXPECT_EQ(one.bytes, five.bytes);
}

TEST(Perplexity_Progress, CountsAndMayStop) {
  PerplexityOptions options;
  options.seq_len = 8;
  options.batch = 2;
  std::int64_t last = -1;
  measure_perplexity(world().model, world().data, world().tokenizer, options,
                     [&](std::int64_t done, std::int64_t wanted) {
                       EXPECT_GT(done, last);
                       EXPECT_EQ(wanted, world().targets());
                       last = done;
                     });
  EXPECT_GT(last, 0);
  EXPECT_THROW(measure_perplexity(
                   world().model, world().data, world().tokenizer, options,
                   [](std::int64_t, std::int64_t) { throw Error(ErrorCode::kInternal, "stop"); }),
               Error);
  options.batch = 0;
  EXPECT_THROW(measure(options), Error);
}

}  // namespace
}  // namespace kda::test
