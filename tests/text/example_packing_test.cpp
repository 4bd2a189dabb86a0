#include "text/example_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "text/text_test_support.h"

namespace kda::text {
namespace {

using test::dataset;
using test::Documents;
using test::expect_error;
using test::TempFolder;

constexpr std::int32_t kBos = 1;
constexpr std::int32_t kEos = 2;

/// Examples whose ids tell which one they belong to: prompt of i % 5 + 1 ids after BOS, answer of
/// i % 7 ids before EOS.
Documents examples(int count) {
  Documents documents;
  for (int i = 0; i < count; ++i) {
    std::vector<std::int32_t> prompt{kBos};
    prompt.insert(prompt.end(), static_cast<std::size_t>(i % 5 + 1), 3 + 2 * i);
    std::vector<std::int32_t> answer(static_cast<std::size_t>(i % 7), 4 + 2 * i);
    answer.push_back(kEos);
    documents.push_back(prompt);
    documents.push_back(answer);
  }
  return documents;
}

std::int64_t inputs_of(int i) { return i % 5 + 2 + i % 7; }

ExampleOptions options(std::int64_t max_tokens, std::uint64_t seed = 1) {
  ExampleOptions o;
  o.max_tokens = max_tokens;
  o.seed = seed;
  return o;
}

TEST(ExamplePacking, PromptsAreMaskedAnswersAndEosAreLearnt) {
  const TempFolder folder;
  const ExampleSet set(dataset(folder, {{kBos, 10, 11}, {20, 21, kEos}}), 16);
  PackedBatch batch;
  batch.rows = 1;
  batch.cu_seqlens = {0};
  set.append(0, std::vector<std::int32_t>(100, 3), batch);
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{kBos, 10, 11, 20, 21}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{-100, -100, 20, 21, kEos}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(batch.num_targets, 3);
  EXPECT_EQ(batch.num_target_bytes, 9);
  EXPECT_EQ(set.num_targets(), 3);
  EXPECT_EQ(set.num_inputs(), 5);
}

TEST(ExamplePacking, AnEpochHasEveryExampleOnceWholeAndWithoutPadding) {
  const TempFolder folder;
  constexpr int kCount = 40;
  const ExampleSet set(dataset(folder, examples(kCount)), 16);
  ExampleBatches batches(set, options(32));
  std::map<std::int64_t, int> seen;
  std::int64_t eos_learnt = 0;
  const std::int64_t count = ExampleBatches::count_batches(set, options(32), 3);
  for (std::int64_t b = 0; b < count; ++b) {
    const PackedBatch batch = batches.next();
    EXPECT_EQ(batch.rows, 1);
    EXPECT_LE(batch.seq_len, 32);
    ASSERT_EQ(batch.inputs.size(), static_cast<std::size_t>(batch.seq_len));
    ASSERT_EQ(batch.targets.size(), batch.inputs.size());
    EXPECT_EQ(batch.cu_seqlens.back(), batch.seq_len);
    EXPECT_EQ(batch.num_tokens, batch.seq_len);  // every input is a token of an example
    for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) {
      const auto begin = static_cast<std::size_t>(batch.cu_seqlens[n]);
      const auto end = static_cast<std::size_t>(batch.cu_seqlens[n + 1]);
      EXPECT_EQ(batch.inputs[begin], kBos);
      const std::int64_t example = (batch.inputs[begin + 1] - 3) / 2;
      EXPECT_EQ(static_cast<std::int64_t>(end - begin), inputs_of(static_cast<int>(example)));
      ++seen[example];
      // EOS is never an input and always the last target of its example.
      EXPECT_EQ(std::count(batch.inputs.begin() + batch.cu_seqlens[n],
                           batch.inputs.begin() + batch.cu_seqlens[n + 1], kEos),
                0);
      EXPECT_EQ(batch.targets[end - 1], kEos);
      eos_learnt += std::count(batch.targets.begin() + batch.cu_seqlens[n],
                               batch.targets.begin() + batch.cu_seqlens[n + 1], kEos);
    }
  }
  // Three epochs, and what the last batch has of the fourth.
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kCount));
  int total = 0;
  for (const auto& [example, times] : seen) {
    EXPECT_GE(times, 3) << example;
    total += times;
  }
  EXPECT_LT(total, 3 * kCount + 16);
  EXPECT_EQ(eos_learnt, total);
}

TEST(ExamplePacking, OrderFollowsSeedAndEpoch) {
  const TempFolder folder;
  const auto data = dataset(folder, examples(40));
  const ExampleSet set(data, 16);
  const auto first = [&](std::uint64_t seed) {
    return ExampleBatches(set, options(64, seed)).next().inputs;
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST(ExamplePacking, RestoreGoesOnWithTheNextBatch) {
  const TempFolder folder;
  const ExampleSet set(dataset(folder, examples(23)), 16);
  ExampleBatches straight(set, options(20));
  std::vector<DataCursor> cursors;
  std::vector<std::vector<std::int64_t>> rows;
  for (int b = 0; b < 30; ++b) {
    cursors.push_back(straight.cursor());
    rows.push_back(straight.next().inputs);
  }
  for (std::size_t b = 0; b < rows.size(); ++b) {
    ExampleBatches other(set, options(20));
    other.restore(cursors[b]);
    EXPECT_EQ(other.next().inputs, rows[b]) << b;
  }
  ExampleBatches other(set, options(20, 9));
  expect_error(ErrorCode::kInvalidArgument, {"seed"}, [&] { other.restore(cursors[3]); });
  DataCursor foreign = cursors[3];
  foreign.dataset = "0123";
  ExampleBatches same(set, options(20));
  expect_error(ErrorCode::kInvalidArgument, {"0123"}, [&] { same.restore(foreign); });
  foreign = cursors[3];
  foreign.position = 24;
  expect_error(ErrorCode::kInvalidArgument, {"24"}, [&] { same.restore(foreign); });
}

TEST(ExamplePacking, LongExamplesAreLeftOutAndCounted) {
  const TempFolder folder;
  const auto data = dataset(folder, examples(35));
  int fitting = 0;
  for (int i = 0; i < 35; ++i)
    fitting += inputs_of(i) <= 6;
  const ExampleSet set(data, 6);
  EXPECT_EQ(set.size(), static_cast<std::uint64_t>(fitting));
  EXPECT_EQ(set.num_too_long(), static_cast<std::uint64_t>(35 - fitting));
  EXPECT_LE(set.longest(), 6);
  expect_error(ErrorCode::kInvalidArgument, {"seq-len = 1"}, [&] { ExampleSet(data, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"longest"},
               [&] { ExampleBatches(set, options(set.longest() - 1)); });
}

TEST(ExamplePacking, LimitTakesEvenlySpacedExamples) {
  const TempFolder folder;
  const auto data = dataset(folder, examples(40));
  const ExampleSet set(data, 16, 10);
  EXPECT_EQ(set.size(), 10u);
  EXPECT_EQ(set.prompt_tokens_of(1), 4 % 5 + 2);  // example 4 of the file
  EXPECT_EQ(ExampleSet(data, 16, 1000).size(), 40u);
}

TEST(ExamplePacking, OddDocumentsAreNoExamples) {
  const TempFolder folder;
  expect_error(ErrorCode::kInvalidArgument, {"pairs"}, [&] {
    ExampleSet(dataset(folder, {{1, 5}, {6, 2}, {1}}), 8);
  });
}

TEST(ExamplePacking, HeldOutBatchesCoverEverythingInOrder) {
  const TempFolder folder;
  const ExampleSet set(dataset(folder, examples(40)), 16);
  std::vector<std::uint32_t> all;
  for (const auto& batch : held_out_batches(set, 24)) {
    std::int64_t tokens = 0;
    for (const std::uint32_t i : batch)
      tokens += set.inputs_of(i);
    EXPECT_LE(tokens, 24);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  ASSERT_EQ(all.size(), 40u);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
}

TEST(ShardDataset, ThinnedIsAnEvenSampleWithAFingerprintOfItsOwn) {
  const TempFolder folder;
  Documents documents;
  for (int i = 0; i < 30; ++i)
    documents.push_back({3 + i, kEos});
  const auto whole = dataset(folder, documents);
  const TokenDataset some = whole->thinned(10);
  EXPECT_EQ(some.num_documents(), 10u);
  EXPECT_EQ(some.num_tokens(), 20u);
  std::vector<std::int64_t> id(1);
  for (std::uint64_t i = 0; i < 10; ++i) {
    some.copy(i, 0, id);
    EXPECT_EQ(id[0], 3 + 3 * static_cast<std::int64_t>(i));
  }
  EXPECT_NE(some.fingerprint(), whole->fingerprint());
  EXPECT_EQ(whole->thinned(30).fingerprint(), whole->fingerprint());
  EXPECT_EQ(whole->thinned(0).num_documents(), 30u);
}

}  // namespace
}  // namespace kda::text
