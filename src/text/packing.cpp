#include "text/packing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "io/config_reader.h"
#include "io/escape.h"
#include "kda/error.h"
#include "text/random.h"

namespace kda::text {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::string number(std::uint64_t value) { return std::to_string(value); }
std::string number(std::int64_t value) { return std::to_string(value); }

void check(const TokenDataset& data, const PackingOptions& options) {
  constexpr std::int64_t kMaxSeqLen = std::int64_t{1} << 24;
  constexpr std::int64_t kMaxRows = 1 << 20;
  if (options.seq_len < 1 || options.seq_len > kMaxSeqLen) {
    refuse("seq_len: expected 1 to 2^24, got " + number(options.seq_len));
  }
  if (options.rows < 1 || options.rows > kMaxRows) {
    refuse("rows: expected 1 to 2^20, got " + number(options.rows));
  }
  if (options.world < 1 || options.world > kMaxRows || options.rank < 0 ||
      options.rank >= options.world) {
    refuse("rank: expected 0 <= rank < world <= 2^20, got rank " + number(options.rank) +
           ", world " + number(options.world));
  }
  if (!options.token_bytes.empty() && options.token_bytes.size() != data.vocab_size()) {
    refuse("token_bytes: expected " + std::to_string(data.vocab_size()) + " entries, got " +
           std::to_string(options.token_bytes.size()));
  }
  if (data.num_tokens() == 0) refuse("data: no tokens");
  if (data.num_documents() > std::numeric_limits<std::uint32_t>::max()) {
    refuse("data: more than 2^32 − 1 documents");
  }
}

std::shared_ptr<const TokenDataset> not_null(std::shared_ptr<const TokenDataset> data) {
  if (data == nullptr) refuse("data: expected a dataset, got null");
  return data;
}

/// Tokens begin … end − 1 of a document.
struct Piece {
  std::uint64_t document = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Where the next token comes from: place in the order of pieces and offset in that piece.
struct Place {
  std::uint64_t position = 0;
  std::uint64_t offset = 0;
};

/// Fills one row at a time from the `pieces` that `piece_at` names. `Next` moves past the end of
/// the order: true to go on with a new epoch, false at the end of the data.
class RowFiller {
 public:
  RowFiller(const TokenDataset& data, const PackingOptions& options)
      : data_(data), options_(options) {}

  /// Appends one row to `batch`, or, without a batch, only moves `place`. Returns the tokens taken:
  /// `seq_len`, or fewer when the data end.
  template <class PieceAt, class NextEpoch>
  std::int64_t fill(Place& place, PackedBatch* batch, std::uint64_t pieces, const PieceAt& piece_at,
                    const NextEpoch& next_epoch) const {
    const auto length = static_cast<std::uint64_t>(options_.seq_len);
    std::uint64_t filled = 0;
    while (filled < length) {
      if (place.position == pieces) {
        if (!next_epoch()) break;
        place = {};
      }
      const Piece piece = piece_at(place.position);
      const std::uint64_t begin = piece.begin + place.offset;
      const std::uint64_t left = piece.end - begin;
      const std::uint64_t take = std::min(left, length - filled);
      if (batch != nullptr && take > 0) {
        const bool continues = begin + take < data_.document_tokens(piece.document);
        append(*batch, piece.document, begin, take, continues);
      }
      filled += take;
      place.offset += take;
      if (take == left) place = {place.position + 1, 0};
    }
    return static_cast<std::int64_t>(filled);
  }

  /// Completes a row of `filled` tokens with padding that is a sequence of its own.
  void pad(PackedBatch& batch, std::int64_t filled, std::int64_t pad_id) const {
    const auto missing = static_cast<std::size_t>(options_.seq_len - filled);
    if (missing == 0) return;
    batch.inputs.insert(batch.inputs.end(), missing, pad_id);
    batch.targets.insert(batch.targets.end(), missing, kIgnoreIndex);
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(batch.inputs.size()));
  }

  PackedBatch empty_batch() const {
    PackedBatch batch;
    batch.seq_len = options_.seq_len;
    batch.cu_seqlens.push_back(0);
    return batch;
  }

 private:
  void append(PackedBatch& batch, std::uint64_t document, std::uint64_t offset, std::uint64_t take,
              bool continues) const {
    const std::size_t begin = batch.inputs.size();
    // One token more than the inputs when the document goes on: it is the last target.
    scratch_.resize(take + (continues ? 1 : 0));
    data_.copy(document, offset, scratch_);
    batch.inputs.insert(batch.inputs.end(), scratch_.begin(),
                        scratch_.begin() + static_cast<std::ptrdiff_t>(take));
    batch.targets.insert(batch.targets.end(), scratch_.begin() + 1, scratch_.end());
    const std::size_t counted = batch.targets.size() - begin;
    if (!continues) batch.targets.push_back(kIgnoreIndex);
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(batch.inputs.size()));
    batch.num_tokens += static_cast<std::int64_t>(take);
    batch.num_targets += static_cast<std::int64_t>(counted);
    if (options_.token_bytes.empty()) return;
    for (std::size_t i = 0; i < counted; ++i) {
      const auto id = static_cast<std::size_t>(batch.targets[begin + i]);
      batch.num_target_bytes += options_.token_bytes[id];
    }
  }

  const TokenDataset& data_;
  const PackingOptions& options_;
  mutable std::vector<std::int64_t> scratch_;
};

}  // namespace

std::vector<std::int64_t> PackedBatch::row_cu_seqlens(std::int64_t row) const {
  if (row < 0 || row >= rows)
    refuse("row: expected 0 to " + number(rows - 1) + ", got " + number(row));
  const std::int64_t begin = row * seq_len;
  std::vector<std::int64_t> starts;
  for (auto it = std::lower_bound(cu_seqlens.begin(), cu_seqlens.end(), begin);
       it != cu_seqlens.end() && *it <= begin + seq_len; ++it) {
    starts.push_back(*it - begin);
  }
  return starts;
}

io::Json to_json(const DataCursor& cursor) {
  return {{"seed", cursor.seed},     {"epoch", cursor.epoch}, {"position", cursor.position},
          {"offset", cursor.offset}, {"rows", cursor.rows},   {"dataset", cursor.dataset}};
}

DataCursor cursor_from_json(const io::Json& value, std::string_view what) {
  try {
    io::ConfigReader reader(value, "cursor");
    DataCursor cursor;
    cursor.seed = reader.require_uint64("seed");
    cursor.epoch = reader.require_uint64("epoch");
    cursor.position = reader.require_uint64("position");
    cursor.offset = reader.require_uint64("offset");
    cursor.rows = reader.require_uint64("rows");
    cursor.dataset = reader.require_string("dataset");
    reader.finish();
    return cursor;
  } catch (const Error& e) {
    throw Error(ErrorCode::kIo, std::string(what) + ": " + e.what());
  }
}

struct PackedStream::Impl {
  Impl(std::shared_ptr<const TokenDataset> tokens, PackingOptions settings)
      : data(not_null(std::move(tokens))), options(std::move(settings)), filler(*data, options) {
    check(*data, options);
    find_later_pieces();
    start_epoch(0);
  }

  std::uint64_t piece_tokens() const {
    return static_cast<std::uint64_t>(options.seq_len * kPieceRows);
  }

  void find_later_pieces() {
    for (std::uint64_t d = 0; d < data->num_documents(); ++d) {
      const std::uint64_t tokens = data->document_tokens(d);
      for (std::uint64_t begin = piece_tokens(); begin < tokens; begin += piece_tokens()) {
        later.push_back({d, begin, std::min(tokens, begin + piece_tokens())});
      }
    }
    if (pieces() > std::numeric_limits<std::uint32_t>::max()) {
      refuse("data: more than 2^32 − 1 pieces of documents");
    }
  }

  std::uint64_t pieces() const { return data->num_documents() + later.size(); }

  Piece piece(std::uint32_t index) const {
    if (index >= data->num_documents()) return later[index - data->num_documents()];
    return {index, 0, std::min(data->document_tokens(index), piece_tokens())};
  }

  std::vector<std::uint32_t> order_of(std::uint64_t number_of_epoch) const {
    return shuffled_indices(static_cast<std::uint32_t>(pieces()), options.seed, number_of_epoch);
  }

  void start_epoch(std::uint64_t number_of_epoch) {
    epoch = number_of_epoch;
    order = order_of(epoch);
  }

  void row(PackedBatch* batch) {
    filler.fill(
        place, batch, pieces(), [this](std::uint64_t position) { return piece(order[position]); },
        [this] {
          start_epoch(epoch + 1);
          return true;
        });
    ++rows;
  }

  /// The rows of one call over all ranks; only those of this rank are copied.
  void group(PackedBatch* batch) {
    for (std::int64_t rank = 0; rank < options.world; ++rank) {
      for (std::int64_t i = 0; i < options.rows; ++i) {
        row(rank == options.rank ? batch : nullptr);
      }
    }
  }

  std::shared_ptr<const TokenDataset> data;
  PackingOptions options;
  RowFiller filler;
  std::vector<Piece> later;  ///< pieces of long documents beyond their first
  std::vector<std::uint32_t> order;
  std::uint64_t epoch = 0;
  std::uint64_t rows = 0;
  Place place;
};

PackedStream::PackedStream(std::shared_ptr<const TokenDataset> data, PackingOptions options)
    : impl_(std::make_unique<Impl>(std::move(data), std::move(options))) {}
PackedStream::~PackedStream() = default;
PackedStream::PackedStream(PackedStream&&) noexcept = default;
PackedStream& PackedStream::operator=(PackedStream&&) noexcept = default;

PackedBatch PackedStream::next() {
  PackedBatch batch = impl_->filler.empty_batch();
  batch.rows = impl_->options.rows;
  impl_->group(&batch);
  return batch;
}

void PackedStream::skip(std::uint64_t batches) {
  for (std::uint64_t i = 0; i < batches; ++i)
    impl_->group(nullptr);
}

DataCursor PackedStream::cursor() const {
  return {impl_->options.seed, impl_->epoch, impl_->place.position,
          impl_->place.offset, impl_->rows,  io::to_hex(impl_->data->fingerprint())};
}

void PackedStream::restore(const DataCursor& cursor) {
  const std::string fingerprint = io::to_hex(impl_->data->fingerprint());
  if (cursor.dataset != fingerprint) {
    refuse("cursor: belongs to the data " + io::escaped(cursor.dataset) + ", these are " +
           io::escaped(fingerprint));
  }
  if (cursor.seed != impl_->options.seed) {
    refuse("cursor: seed " + number(cursor.seed) + ", the stream has " +
           number(impl_->options.seed));
  }
  const std::uint64_t pieces = impl_->pieces();
  if (cursor.position > pieces || (cursor.position == pieces && cursor.offset != 0)) {
    refuse("cursor: position " + number(cursor.position) + " of " + number(pieces) +
           " pieces of documents");
  }
  auto order = impl_->order_of(cursor.epoch);
  if (cursor.offset != 0) {
    const Piece piece = impl_->piece(order[cursor.position]);
    if (cursor.offset >= piece.end - piece.begin) {
      refuse("cursor: offset " + number(cursor.offset) + " in a piece of " +
             number(piece.end - piece.begin) + " tokens");
    }
  }
  impl_->order = std::move(order);
  impl_->epoch = cursor.epoch;
  impl_->rows = cursor.rows;
  impl_->place = {cursor.position, cursor.offset};
}

struct HeldOutIterator::Impl {
  Impl(std::shared_ptr<const TokenDataset> tokens, PackingOptions settings, std::int64_t padding)
      : data(not_null(std::move(tokens))),
        options(std::move(settings)),
        pad_id(padding),
        filler(*data, options) {
    check(*data, options);
    if (pad_id < 0 || pad_id >= std::int64_t{data->vocab_size()}) {
      refuse("pad_id: expected an id below " + std::to_string(data->vocab_size()) + ", got " +
             number(pad_id));
    }
  }

  bool at_end() const { return rows == total_rows(); }
  std::int64_t total_rows() const {
    const auto tokens = static_cast<std::int64_t>(data->num_tokens());
    return (tokens + options.seq_len - 1) / options.seq_len;
  }

  std::shared_ptr<const TokenDataset> data;
  PackingOptions options;
  std::int64_t pad_id;
  RowFiller filler;
  Place place;
  std::int64_t rows = 0;  ///< given, over all ranks
};

HeldOutIterator::HeldOutIterator(std::shared_ptr<const TokenDataset> data, PackingOptions options,
                                 std::int64_t pad_id)
    : impl_(std::make_unique<Impl>(std::move(data), std::move(options), pad_id)) {}
HeldOutIterator::~HeldOutIterator() = default;
HeldOutIterator::HeldOutIterator(HeldOutIterator&&) noexcept = default;
HeldOutIterator& HeldOutIterator::operator=(HeldOutIterator&&) noexcept = default;

std::optional<PackedBatch> HeldOutIterator::next() {
  PackedBatch batch = impl_->filler.empty_batch();
  for (std::int64_t rank = 0; rank < impl_->options.world; ++rank) {
    const bool mine = rank == impl_->options.rank;
    for (std::int64_t i = 0; i < impl_->options.rows && !impl_->at_end(); ++i) {
      const std::int64_t filled = impl_->filler.fill(
          impl_->place, mine ? &batch : nullptr, impl_->data->num_documents(),
          [this](std::uint64_t document) {
            return Piece{document, 0, impl_->data->document_tokens(document)};
          },
          [] { return false; });
      ++impl_->rows;
      if (!mine) continue;
      impl_->filler.pad(batch, filled, impl_->pad_id);
      ++batch.rows;
    }
  }
  if (batch.rows == 0) return std::nullopt;
  return batch;
}

void HeldOutIterator::rewind() {
  impl_->place = {};
  impl_->rows = 0;
}

std::int64_t HeldOutIterator::total_rows() const { return impl_->total_rows(); }

}  // namespace kda::text
