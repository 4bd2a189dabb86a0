/// Packs tokenised documents into full rows, isolates them by sequence boundaries, and remembers
/// where it is.
///
/// Every row has exactly `seq_len` input tokens. Documents follow each other; a document that does
/// not fit goes on in the next row as a new sequence. `targets[i]` is the token after `inputs[i]`
/// in the same document, also across the cut between two rows, so every token of a document except
/// its first is a target exactly once per epoch. The last token of a document (its EOS) has target
/// −100: the loss never asks for the first token of the next document.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/shard.h"

namespace kda::text {

/// Label that the loss ignores.
inline constexpr std::int64_t kIgnoreIndex = -100;

/// One batch of `rows` rows, ready to be wrapped as int64 tensors.
struct PackedBatch {
  std::int64_t rows = 0;              ///< B
  std::int64_t seq_len = 0;           ///< T
  std::vector<std::int64_t> inputs;   ///< [B, T]
  std::vector<std::int64_t> targets;  ///< [B, T], kIgnoreIndex where nothing is to be predicted
  /// Sequence starts over the flattened B·T tokens, then B·T. Every row starts a sequence; padding
  /// at the end of a held-out row is a sequence of its own, so the list always covers all tokens.
  std::vector<std::int64_t> cu_seqlens;
  std::int64_t num_tokens = 0;        ///< inputs that are not padding
  std::int64_t num_targets = 0;       ///< targets that count
  std::int64_t num_target_bytes = 0;  ///< UTF-8 bytes of those, 0 without a byte table

  /// Starts within row `row` (0 … T), first 0, last T: what the row looks like alone.
  std::vector<std::int64_t> row_cu_seqlens(std::int64_t row) const;
};

/// Position in the endless stream of rows. Restoring it continues with exactly the tokens that
/// would have come next, also in the middle of a document.
struct DataCursor {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;     ///< whole passes done
  std::uint64_t position = 0;  ///< in the shuffled order of this epoch
  std::uint64_t offset = 0;    ///< tokens of that piece already given
  std::uint64_t rows = 0;      ///< rows given since the beginning, over all ranks
  std::string dataset;         ///< hexadecimal fingerprint of the data

  bool operator==(const DataCursor&) const = default;
};

io::Json to_json(const DataCursor& cursor);
/// Error(kIo) for missing, unknown or malformed fields.
DataCursor cursor_from_json(const io::Json& value, std::string_view what);

struct PackingOptions {
  std::int64_t seq_len = 0;  ///< T, 1 to 2^24
  std::int64_t rows = 0;     ///< B of one `next` call on one rank
  std::uint64_t seed = 0;
  /// Rank r of `world` gets rows r·B … r·B + B−1 of each group of world·B rows, so the stream of
  /// rows, and the cursor, do not depend on the number of ranks.
  std::int64_t rank = 0;
  std::int64_t world = 1;
  /// UTF-8 bytes of each id (Tokenizer::token_bytes), for bits per byte; may be empty.
  std::vector<std::int32_t> token_bytes;
};

/// Rows that one document fills in a row at most. A longer one is cut into pieces of so many rows,
/// which come at places of their own: else a manual of 40,000 tokens would be forty batches.
inline constexpr std::int64_t kPieceRows = 4;

/// Endless training stream. Epoch e visits the pieces of documents in the order
/// `shuffled_indices(pieces, seed, e)`: first pieces in file order, then all others; a row that the
/// end of an epoch leaves unfinished is filled from the next. Error(kInvalidArgument) for bad
/// options or data without tokens.
class PackedStream {
 public:
  PackedStream(std::shared_ptr<const TokenDataset> data, PackingOptions options);
  ~PackedStream();
  PackedStream(PackedStream&&) noexcept;
  PackedStream& operator=(PackedStream&&) noexcept;

  /// Next batch of this rank.
  PackedBatch next();
  /// Moves past `batches` batches without copying tokens.
  void skip(std::uint64_t batches);

  DataCursor cursor() const;
  /// Error(kInvalidArgument) if the cursor belongs to other data or another seed, or lies outside
  /// it.
  void restore(const DataCursor& cursor);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One pass over held-out documents in file order. The last row is padded with `pad_id`; a batch
/// may have fewer rows than asked for. Options `seed` is not used; rank r of world takes rows as
/// above.
class HeldOutIterator {
 public:
  HeldOutIterator(std::shared_ptr<const TokenDataset> data, PackingOptions options,
                  std::int64_t pad_id);
  ~HeldOutIterator();
  HeldOutIterator(HeldOutIterator&&) noexcept;
  HeldOutIterator& operator=(HeldOutIterator&&) noexcept;

  /// Next batch, or nothing at the end.
  std::optional<PackedBatch> next();
  void rewind();
  /// Rows of one pass, over all ranks.
  std::int64_t total_rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kda::text
