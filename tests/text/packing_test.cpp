#include "text/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "text/random.h"
#include "text/text_test_support.h"

namespace kda::text {
namespace {

using test::dataset;
using test::Documents;
using test::expect_error;
using test::TempFolder;
using Ids = std::vector<std::int64_t>;

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

PackingOptions options(std::int64_t rows, std::int64_t seq_len, std::uint64_t seed = 1) {
  PackingOptions o;
  o.rows = rows;
  o.seq_len = seq_len;
  o.seed = seed;
  return o;
}

/// Documents whose tokens are all different, so that positions can be told from values.
Documents random_documents(unsigned seed, std::size_t count, int longest) {
  std::mt19937 random(seed);
  Documents documents(count);
  std::int32_t next = 3;
  for (auto& document : documents) {
    const int length = std::uniform_int_distribution<int>(0, longest)(random);
    for (int i = 0; i < length; ++i)
      document.push_back(next++);
  }
  documents[0].push_back(next);  // never without tokens
  return documents;
}

bool operator==(const PackedBatch& a, const PackedBatch& b) {
  return a.rows == b.rows && a.inputs == b.inputs && a.targets == b.targets &&
         a.cu_seqlens == b.cu_seqlens && a.num_targets == b.num_targets;
}

/// What the rows must hold, written token by token from the definition.
struct Oracle {
  Ids inputs;
  Ids targets;
  std::vector<bool> starts;  ///< a document begins here
};

/// Pieces of 4 rows: the first ones of all documents, then the others, document by document.
std::vector<std::pair<std::size_t, std::size_t>> pieces_of(const Documents& documents,
                                                           std::size_t length) {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // document, first token
  for (std::size_t d = 0; d < documents.size(); ++d)
    pieces.emplace_back(d, 0);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (std::size_t at = length; at < documents[d].size(); at += length)
      pieces.emplace_back(d, at);
  }
  return pieces;
}

Oracle oracle(const Documents& documents, std::int64_t seq_len, std::uint64_t seed,
              std::uint64_t epochs) {
  Oracle o;
  const std::size_t length = 4 * static_cast<std::size_t>(seq_len);
  const auto pieces = pieces_of(documents, length);
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto p : shuffled_indices(static_cast<std::uint32_t>(pieces.size()), seed, epoch)) {
      const auto& ids = documents[pieces[p].first];
      const std::size_t begin = pieces[p].second;
      for (std::size_t i = begin; i < std::min(ids.size(), begin + length); ++i) {
        o.inputs.push_back(ids[i]);
        o.targets.push_back(i + 1 < ids.size() ? ids[i + 1] : kIgnoreIndex);
        o.starts.push_back(i == begin);
      }
    }
  }
  return o;
}

TEST(PackedStream_Rows, EqualTheDefinition) {
  const TempFolder folder;
  for (unsigned seed = 0; seed < 12; ++seed) {
    const Documents documents = random_documents(seed, 1 + seed % 7, 23);
    const auto data = dataset(folder, documents, 2000);
    const std::int64_t seq_len = 1 + seed % 9;
    const std::int64_t rows = 1 + seed % 3;
    PackedStream stream(data, options(rows, seq_len, seed));
    const Oracle expected = oracle(documents, seq_len, seed, 2 + 20 * 27 / data->num_tokens());
    std::size_t at = 0;
    for (int step = 0; step < 20; ++step) {
      const PackedBatch batch = stream.next();
      const auto size = static_cast<std::size_t>(rows * seq_len);
      ASSERT_EQ(batch.inputs.size(), size);
      ASSERT_EQ(batch.targets.size(), size);
      ASSERT_EQ(batch.num_tokens, rows * seq_len);
      std::int64_t counted = 0;
      Ids cu;
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(batch.inputs[i], expected.inputs[at + i]);
        ASSERT_EQ(batch.targets[i], expected.targets[at + i]);
        counted += batch.targets[i] != kIgnoreIndex ? 1 : 0;
        const bool row_start = i % static_cast<std::size_t>(seq_len) == 0;
        if (row_start || expected.starts[at + i]) cu.push_back(static_cast<std::int64_t>(i));
      }
      cu.push_back(static_cast<std::int64_t>(size));
      ASSERT_EQ(batch.cu_seqlens, cu);
      ASSERT_EQ(batch.num_targets, counted);
      at += size;
    }
  }
}

TEST(PackedStream_LongDocument, ComesInPiecesAmongOthers) {
  const TempFolder folder;
  Documents documents(200, {1, 2, 3, 4, 5, 6, 7, 8});
  documents[50].assign(800, 9);  // as long as a third of all
  PackedStream stream(dataset(folder, documents), options(2, 8, 3));
  int longest = 0;
  for (int step = 0, run = 0; step < 150; ++step) {
    const auto batch = stream.next();
    run = std::count(batch.inputs.begin(), batch.inputs.end(), 9) == 16 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  EXPECT_LE(longest, 8);  // in one go it would be 50 batches
}

TEST(PackedStream_Targets, NeverCrossDocuments) {
  const TempFolder folder;
  // A = 10 11 12, B = 20 21: whatever the order and cut, 20 is never a target, nor is 10.
  const auto data = dataset(folder, {{10, 11, 12}, {20, 21}, {30}});
  for (std::int64_t seq_len = 1; seq_len <= 7; ++seq_len) {
    PackedStream stream(data, options(2, seq_len, 9));
    std::map<std::int64_t, int> inputs;
    std::map<std::int64_t, int> targets;
    for (int step = 0; step < 6 * 7; ++step) {
      const auto batch = stream.next();
      for (const auto id : batch.inputs)
        ++inputs[id];
      for (const auto id : batch.targets)
        ++targets[id];
    }
    EXPECT_EQ(targets.count(10) + targets.count(20) + targets.count(30), 0u);
    EXPECT_NEAR(targets[11], inputs[10], 1);
    EXPECT_NEAR(targets[21], inputs[20], 1);
  }
}

TEST(PackedStream_Epochs, CoverEveryDocumentOnce) {
  const TempFolder folder;
  const Documents documents = random_documents(3, 40, 9);
  const auto data = dataset(folder, documents, 2000);
  const auto tokens = static_cast<std::int64_t>(data->num_tokens());
  PackedStream stream(data, options(1, 1, 5));
  for (int epoch = 0; epoch < 3; ++epoch) {
    Ids seen;
    for (std::int64_t i = 0; i < tokens; ++i)
      seen.push_back(stream.next().inputs[0]);
    std::sort(seen.begin(), seen.end());
    EXPECT_TRUE(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    EXPECT_EQ(stream.cursor().epoch, static_cast<std::uint64_t>(epoch));
  }
  PackedStream other(data, options(1, 64, 6));
  EXPECT_FALSE(other.next() == PackedStream(data, options(1, 64, 5)).next());
}

TEST(PackedStream_Cursor, ResumesAnywhereExactly) {
  const TempFolder folder;
  const Documents documents = random_documents(11, 9, 31);
  const auto data = dataset(folder, documents, 2000);
  const auto settings = options(2, 13, 77);
  PackedStream reference(data, settings);
  std::vector<PackedBatch> batches;
  std::vector<DataCursor> cursors;
  for (int i = 0; i < 40; ++i) {
    cursors.push_back(reference.cursor());
    batches.push_back(reference.next());
  }
  EXPECT_GT(cursors.back().epoch, 2u);
  for (std::size_t i = 0; i < cursors.size(); ++i) {
    // Through text, as a checkpoint does it.
    const auto json = io::parse_json(to_json(cursors[i]).dump(), "cursor");
    const DataCursor cursor = cursor_from_json(json, "checkpoint");
    ASSERT_EQ(cursor, cursors[i]);
    PackedStream resumed(data, settings);
    resumed.restore(cursor);
    for (std::size_t j = i; j < batches.size(); ++j)
      ASSERT_TRUE(resumed.next() == batches[j]);
    ASSERT_EQ(resumed.cursor(), reference.cursor());
  }
}

TEST(PackedStream_Skip, EqualsReading) {
  const TempFolder folder;
  const auto data = dataset(folder, random_documents(2, 9, 31), 2000);
  PackedStream a(data, options(3, 7));
  PackedStream b(data, options(3, 7));
  for (int i = 0; i < 5; ++i)
    a.next();
  b.skip(5);
  EXPECT_EQ(a.cursor(), b.cursor());
  EXPECT_TRUE(a.next() == b.next());
}

TEST(PackedStream_Ranks, TogetherGiveTheSameRows) {
  const TempFolder folder;
  const auto data = dataset(folder, random_documents(5, 20, 17), 2000);
  PackedStream whole(data, options(4, 11));
  for (const std::int64_t world : {2, 4}) {
    std::vector<PackedStream> ranks;
    for (std::int64_t r = 0; r < world; ++r) {
      auto o = options(4 / world, 11);
      o.rank = r;
      o.world = world;
      ranks.emplace_back(data, o);
    }
    PackedStream reference(data, options(4, 11));
    for (int step = 0; step < 6; ++step) {
      const PackedBatch all = reference.next();
      Ids inputs;
      Ids targets;
      for (auto& rank : ranks) {
        const PackedBatch part = rank.next();
        inputs.insert(inputs.end(), part.inputs.begin(), part.inputs.end());
        targets.insert(targets.end(), part.targets.begin(), part.targets.end());
        ASSERT_EQ(rank.cursor(), reference.cursor());
      }
      ASSERT_EQ(inputs, all.inputs);
      ASSERT_EQ(targets, all.targets);
    }
  }
}

TEST(PackedStream_Bytes, CountTargetsOnly) {
  const TempFolder folder;
  const auto data = dataset(folder, {{10, 11, 12, 2}});
  auto o = options(1, 4);
  o.token_bytes.assign(100, 0);
  o.token_bytes[10] = 1000;  // the first token is never a target
  o.token_bytes[11] = 3;
  o.token_bytes[12] = 4;
  PackedStream stream(data, o);
  const PackedBatch batch = stream.next();
  EXPECT_EQ(batch.num_targets, 3);
  EXPECT_EQ(batch.num_target_bytes, 7);
  EXPECT_EQ(batch.targets, (Ids{11, 12, 2, kIgnoreIndex}));
}

TEST(PackedStream_Bytes, SumOverAnEpochIsThatOfTheDocuments) {
  const TempFolder folder;
  const Documents documents = random_documents(8, 30, 12);
  const auto data = dataset(folder, documents, 2000);
  auto o = options(1, 1);
  for (std::int32_t id = 0; id < 2000; ++id)
    o.token_bytes.push_back(id % 7);
  std::int64_t expected = 0;
  for (const auto& d : documents) {
    for (std::size_t i = 1; i < d.size(); ++i)
      expected += d[i] % 7;
  }
  PackedStream stream(data, o);
  std::int64_t sum = 0;
  for (std::uint64_t i = 0; i < data->num_tokens(); ++i)
    sum += stream.next().num_target_bytes;
  EXPECT_EQ(sum, expected);
}

TEST(PackedBatch_RowCuSeqlens, AreThoseOfTheRow) {
  const TempFolder folder;
  const auto data = dataset(folder, random_documents(4, 12, 9), 2000);
  PackedStream stream(data, options(3, 8));
  const PackedBatch batch = stream.next();
  Ids joined = {0};
  for (std::int64_t row = 0; row < 3; ++row) {
    const Ids starts = batch.row_cu_seqlens(row);
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), 8);
    for (std::size_t i = 1; i < starts.size(); ++i)
      joined.push_back(row * 8 + starts[i]);
  }
  EXPECT_EQ(joined, batch.cu_seqlens);
  expect_error(kBad, {"got 3"}, [&] { batch.row_cu_seqlens(3); });
  expect_error(kBad, {"got -1"}, [&] { batch.row_cu_seqlens(-1); });
}

TEST(HeldOut_OnePass, InOrderWithPadding) {
  const TempFolder folder;
  const auto data = dataset(folder, {{10, 11, 12}, {20, 21}, {}, {30}, {40, 41, 42, 43}});
  HeldOutIterator it(data, options(2, 4), 3);
  EXPECT_EQ(it.total_rows(), 3);
  const auto a = it.next();
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(a->rows, 2);
  EXPECT_EQ(a->inputs, (Ids{10, 11, 12, 20, 21, 30, 40, 41}));
  EXPECT_EQ(a->targets, (Ids{11, 12, -100, 21, -100, -100, 41, 42}));
  EXPECT_EQ(a->cu_seqlens, (Ids{0, 3, 4, 5, 6, 8}));
  const auto b = it.next();
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(b->rows, 1);
  EXPECT_EQ(b->inputs, (Ids{42, 43, 3, 3}));
  EXPECT_EQ(b->targets, (Ids{43, -100, -100, -100}));
  EXPECT_EQ(b->cu_seqlens, (Ids{0, 2, 4}));
  EXPECT_EQ(b->num_tokens, 2);
  EXPECT_EQ(b->num_targets, 1);
  EXPECT_FALSE(it.next().has_value());
  EXPECT_FALSE(it.next().has_value());
  it.rewind();
  EXPECT_TRUE(*it.next() == *a);
}

TEST(HeldOut_Ranks, SeeEveryRowOnce) {
  const TempFolder folder;
  const Documents documents = random_documents(21, 15, 9);
  const auto data = dataset(folder, documents, 2000);
  Ids all;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    auto o = options(2, 5);
    o.rank = rank;
    o.world = 3;
    HeldOutIterator it(data, o, 0);
    while (const auto batch = it.next()) {
      for (const auto id : batch->targets) {
        if (id != kIgnoreIndex) all.push_back(id);
      }
    }
  }
  Ids expected;
  for (const auto& d : documents) {
    for (std::size_t i = 1; i < d.size(); ++i)
      expected.push_back(d[i]);
  }
  std::sort(all.begin(), all.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(all, expected);
}

TEST(Packing_Refuses, BadOptions) {
  const TempFolder folder;
  const auto data = dataset(folder, {{1, 2}});
  const auto make = [&](const PackingOptions& o) { PackedStream stream(data, o); };
  expect_error(kBad, {"seq_len", "got 0"}, [&] { make(options(1, 0)); });
  expect_error(kBad, {"seq_len"}, [&] { make(options(1, (1 << 24) + 1)); });
  expect_error(kBad, {"rows", "got 0"}, [&] { make(options(0, 1)); });
  auto o = options(1, 1);
  o.rank = 1;
  expect_error(kBad, {"rank 1, world 1"}, [&] { make(o); });
  o = options(1, 1);
  o.token_bytes.assign(5, 1);
  expect_error(kBad, {"token_bytes", "100", "got 5"}, [&] { make(o); });
  expect_error(kBad, {"no tokens"}, [&] {
    PackedStream s(dataset(folder, {{}, {}}), options(1, 1));
  });
  expect_error(kBad, {"null"}, [&] { PackedStream s(nullptr, options(1, 1)); });
  expect_error(kBad, {"null"}, [&] { HeldOutIterator s(nullptr, options(1, 1), 0); });
  expect_error(kBad, {"pad_id", "got 100"}, [&] { HeldOutIterator s(data, options(1, 1), 100); });
}

TEST(Cursor_Foreign, IsRefused) {
  const TempFolder folder;
  const auto data = dataset(folder, {{1, 2, 3}, {4, 5}});
  const auto other = dataset(folder, {{1, 2, 3}, {4, 6}});
  PackedStream stream(data, options(1, 2));
  const DataCursor start = stream.cursor();
  expect_error(kBad, {"belongs to the data"},
               [&] { stream.restore(PackedStream(other, options(1, 2)).cursor()); });
  const auto restore = [&](auto change) {
    DataCursor cursor = start;
    change(cursor);
    stream.restore(cursor);
  };
  expect_error(kBad, {"seed 5"}, [&] { restore([](DataCursor& c) { c.seed = 5; }); });
  expect_error(kBad, {"position 3 of 2"}, [&] { restore([](DataCursor& c) { c.position = 3; }); });
  expect_error(kBad, {"position 2 of 2"}, [&] {
    restore([](DataCursor& c) {
      c.position = 2;
      c.offset = 1;
    });
  });
  expect_error(kBad, {"offset 9"}, [&] { restore([](DataCursor& c) { c.offset = 9; }); });
  EXPECT_EQ(stream.cursor(), start);  // a refused cursor changes nothing
  EXPECT_NO_THROW(restore([](DataCursor& c) { c.position = 2; }));

  io::Json json = to_json(start);
  json["offset"] = -1;
  expect_error(ErrorCode::kIo, {"state.json", "cursor.offset"},
               [&] { cursor_from_json(json, "state.json"); });
  json = to_json(start);
  json["more"] = 1;
  expect_error(ErrorCode::kIo, {"unknown key"}, [&] { cursor_from_json(json, "state.json"); });
  json.erase("more");
  json.erase("seed");
  expect_error(ErrorCode::kIo, {"cursor.seed: missing"},
               [&] { cursor_from_json(json, "state.json"); });
}

}  // namespace
}  // namespace kda::text
