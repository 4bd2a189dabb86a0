/// Token shards: tokenised documents in one memory-mapped file.
///
/// Layout, little-endian, all sections aligned to 8 bytes:
///   0    8  magic "KDATOK\x1A\n"
///   8    4  version (1)
///   12   4  bytes per token: 2 or 4
///   16   8  tokens
///   24   8  documents
///   32   4  vocabulary size
///   36   4  EOS id
///   40   8  UTF-8 bytes of the documents' text
///   48  32  sha256 of the tokenizer's model file
///   80  32  sha256 of everything after the header
///   112 16  zero
///   128     tokens, padded with zero to a multiple of 8
///           (documents + 1) × u64: index of each document's first token, then the token count
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "io/sha256.h"

namespace kda::text {

struct ShardInfo {
  std::uint32_t bytes_per_token = 2;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t eos_id = 0;
  std::uint64_t text_bytes = 0;
  io::Sha256Digest tokenizer_sha256{};
  io::Sha256Digest payload_sha256{};
};

/// Writes one shard atomically. Tokens are u16 when the vocabulary fits, else u32. Errors:
/// Error(kInvalidArgument) for ids outside the vocabulary, Error(kIo) from the file system.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, std::uint32_t vocab_size, std::uint32_t eos_id,
              const io::Sha256Digest& tokenizer_sha256);

  /// Appends one document as it is: the caller has put EOS (and BOS) where it wants them.
  /// `text_bytes` is the length of its text in UTF-8.
  void add_document(std::span<const std::int32_t> ids, std::uint64_t text_bytes);

  std::uint64_t tokens() const { return info_.tokens; }
  std::uint64_t documents() const { return info_.documents; }
  /// Writes offsets and header, makes the file visible, returns what the header says.
  ShardInfo commit();

 private:
  void write_payload(std::span<const std::byte> bytes);

  io::AtomicFile file_;
  io::Sha256 hash_;
  ShardInfo info_;
  std::vector<std::uint64_t> offsets_{0};
  std::vector<std::byte> scratch_;
};

/// A validated, memory-mapped shard. `open` checks the header, the exact file size and the offsets;
/// ids are checked against the vocabulary whenever they are copied out. Error(kIo) naming the file.
class ShardReader {
 public:
  static ShardReader open(const std::filesystem::path& path);
  /// Bytes must stay alive as long as the reader.
  static ShardReader parse(std::span<const std::byte> bytes, std::string_view what);

  const ShardInfo& info() const { return info_; }
  const std::string& what() const { return what_; }
  std::uint64_t num_bytes() const { return bytes_.size(); }  ///< of the file
  std::uint64_t document_begin(std::uint64_t document) const;
  std::uint64_t document_tokens(std::uint64_t document) const;

  /// Copies `out.size()` ids of `document` from `offset` on. Error(kInvalidArgument) out of range,
  /// Error(kIo) for an id outside the vocabulary.
  void copy(std::uint64_t document, std::uint64_t offset, std::span<std::int64_t> out) const;
  std::vector<std::int32_t> document(std::uint64_t document) const;

  /// Recomputes the payload hash and checks every id; returns one sentence per fault.
  std::vector<std::string> verify() const;

 private:
  ShardReader() = default;
  std::uint32_t token(std::uint64_t index) const;

  std::string what_;
  std::shared_ptr<const io::MappedFile> file_;
  std::span<const std::byte> bytes_;
  const std::byte* tokens_ = nullptr;
  const std::byte* offsets_ = nullptr;
  ShardInfo info_;
};

/// Several shards seen as one list of documents, in the order of the paths. All must share
/// vocabulary size, EOS and tokenizer. Error(kInvalidArgument) naming the shard that differs.
class TokenDataset {
 public:
  /// Shard files, or folders whose `*.kdatok` files are taken in the order of their names.
  static TokenDataset open(const std::vector<std::filesystem::path>& paths);
  explicit TokenDataset(std::vector<ShardReader> shards);

  /// `count` of the documents, evenly spaced: a fair sample of files that are sorted by source. All
  /// of them when there are no more. The fingerprint differs from that of the whole.
  TokenDataset thinned(std::uint64_t count) const;

  std::uint64_t num_documents() const {
    return chosen_.empty() ? first_document_.back() : chosen_.size();
  }
  std::uint64_t num_tokens() const { return num_tokens_; }
  /// Of all documents of the shards, also of those that `thinned` leaves out.
  std::uint64_t text_bytes() const { return text_bytes_; }
  std::uint32_t vocab_size() const { return shards_.front().info().vocab_size; }
  std::uint32_t eos_id() const { return shards_.front().info().eos_id; }
  const io::Sha256Digest& tokenizer_sha256() const {
    return shards_.front().info().tokenizer_sha256;
  }
  const std::vector<ShardReader>& shards() const { return shards_; }
  /// Identifies the data: hash of all shards' headers in order.
  const io::Sha256Digest& fingerprint() const { return fingerprint_; }

  std::uint64_t document_tokens(std::uint64_t document) const;
  void copy(std::uint64_t document, std::uint64_t offset, std::span<std::int64_t> out) const;

 private:
  std::pair<const ShardReader*, std::uint64_t> locate(std::uint64_t document) const;

  std::vector<ShardReader> shards_;
  std::vector<std::uint64_t> first_document_{0};
  std::vector<std::uint64_t> chosen_;  ///< the documents that count; empty: all
  std::uint64_t num_tokens_ = 0;
  std::uint64_t text_bytes_ = 0;
  io::Sha256Digest fingerprint_{};
};

inline constexpr std::string_view kShardExtension = ".kdatok";

}  // namespace kda::text
