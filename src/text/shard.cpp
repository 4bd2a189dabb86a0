#include "text/shard.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::text {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

namespace {

constexpr std::string_view kMagic("KDATOK\x1A\n", 8);
constexpr std::uint32_t kVersion = 1;

/// The first 128 bytes, without padding between the fields.
struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t bytes_per_token;
  std::uint64_t tokens;
  std::uint64_t documents;
  std::uint32_t vocab_size;
  std::uint32_t eos_id;
  std::uint64_t text_bytes;
  std::uint8_t tokenizer_sha256[32];
  std::uint8_t payload_sha256[32];
  std::uint8_t zero[16];
};
static_assert(sizeof(Header) == 128);

constexpr std::uint64_t padding_after(std::uint64_t bytes) { return (8 - bytes % 8) % 8; }

Header to_header(const ShardInfo& info) {
  Header header{};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  header.version = kVersion;
  header.bytes_per_token = info.bytes_per_token;
  header.tokens = info.tokens;
  header.documents = info.documents;
  header.vocab_size = info.vocab_size;
  header.eos_id = info.eos_id;
  header.text_bytes = info.text_bytes;
  std::copy(info.tokenizer_sha256.begin(), info.tokenizer_sha256.end(), header.tokenizer_sha256);
  std::copy(info.payload_sha256.begin(), info.payload_sha256.end(), header.payload_sha256);
  return header;
}

std::span<const std::byte> as_bytes_of(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

ShardInfo from_header(const Header& header) {
  ShardInfo info;
  info.bytes_per_token = header.bytes_per_token;
  info.tokens = header.tokens;
  info.documents = header.documents;
  info.vocab_size = header.vocab_size;
  info.eos_id = header.eos_id;
  info.text_bytes = header.text_bytes;
  std::copy(std::begin(header.tokenizer_sha256), std::end(header.tokenizer_sha256),
            info.tokenizer_sha256.begin());
  std::copy(std::begin(header.payload_sha256), std::end(header.payload_sha256),
            info.payload_sha256.begin());
  return info;
}

std::uint64_t offset_at(const std::byte* offsets, std::uint64_t i) {
  std::uint64_t value = 0;
  std::memcpy(&value, offsets + i * sizeof(value), sizeof(value));
  return value;
}

[[noreturn]] void refuse(const std::string& what, const std::string& reason) {
  throw Error(ErrorCode::kIo, what + ": not a valid token shard: " + reason);
}

void check_header(const Header& header, std::uint64_t file_bytes, const std::string& what) {
  if (!std::equal(kMagic.begin(), kMagic.end(), header.magic)) refuse(what, "wrong magic");
  if (header.version != kVersion) {
    refuse(what, "version " + std::to_string(header.version) + ", this build reads 1");
  }
  if (header.bytes_per_token != 2 && header.bytes_per_token != 4) {
    refuse(what, std::to_string(header.bytes_per_token) + " bytes per token, 2 or 4 expected");
  }
  constexpr std::uint32_t kMaxVocab = std::numeric_limits<std::int32_t>::max();
  if (header.vocab_size == 0 || header.vocab_size > kMaxVocab ||
      header.eos_id >= header.vocab_size) {
    refuse(what, "vocabulary of " + std::to_string(header.vocab_size) + " with EOS " +
                     std::to_string(header.eos_id));
  }
  if (std::any_of(std::begin(header.zero), std::end(header.zero),
                  [](std::uint8_t b) { return b != 0; })) {
    refuse(what, "reserved bytes are not zero");
  }
  // Both counts are bounded by the file before they enter a product.
  if (header.tokens > file_bytes || header.documents > file_bytes) {
    refuse(what, "counts larger than the file");
  }
  const std::uint64_t token_bytes = header.tokens * header.bytes_per_token;
  const std::uint64_t expected = sizeof(Header) + token_bytes + padding_after(token_bytes) +
                                 (header.documents + 1) * sizeof(std::uint64_t);
  if (file_bytes != expected) {
    refuse(what,
           std::to_string(file_bytes) + " bytes, the header asks for " + std::to_string(expected));
  }
}

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, std::uint32_t vocab_size,
                         std::uint32_t eos_id, const io::Sha256Digest& tokenizer_sha256)
    : file_(path) {
  if (vocab_size == 0 || vocab_size > std::uint32_t{std::numeric_limits<std::int32_t>::max()} ||
      eos_id >= vocab_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "shard: expected eos_id < vocab_size < 2^31, got eos_id " + std::to_string(eos_id) +
                    ", vocab_size " + std::to_string(vocab_size));
  }
  info_.bytes_per_token = vocab_size <= 65536 ? 2 : 4;
  info_.vocab_size = vocab_size;
  info_.eos_id = eos_id;
  info_.tokenizer_sha256 = tokenizer_sha256;
  // Room for the header, which is known at the end only. Its magic is zero until then.
  const Header empty{};
  file_.write(as_bytes_of(empty));
}

void ShardWriter::write_payload(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  file_.write(bytes);
}

void ShardWriter::add_document(std::span<const std::int32_t> ids, std::uint64_t text_bytes) {
  scratch_.resize(ids.size() * info_.bytes_per_token);
  std::byte* out = scratch_.data();
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::uint32_t>(id) >= info_.vocab_size) {
      throw Error(ErrorCode::kInvalidArgument, "shard: expected ids in [0, " +
                                                   std::to_string(info_.vocab_size) + "), got " +
                                                   std::to_string(id));
    }
    const auto wide = static_cast<std::uint32_t>(id);
    std::memcpy(out, &wide, info_.bytes_per_token);  // the low bytes come first
    out += info_.bytes_per_token;
  }
  write_payload(scratch_);
  info_.tokens += ids.size();
  info_.documents += 1;
  info_.text_bytes += text_bytes;
  offsets_.push_back(info_.tokens);
}

ShardInfo ShardWriter::commit() {
  constexpr std::array<std::byte, 8> kZero{};
  write_payload(std::span(kZero).first(padding_after(info_.tokens * info_.bytes_per_token)));
  write_payload(std::as_bytes(std::span(offsets_)));
  info_.payload_sha256 = hash_.finish();
  const Header header = to_header(info_);
  file_.overwrite(0, as_bytes_of(header));
  file_.commit();
  return info_;
}

ShardReader ShardReader::open(const std::filesystem::path& path) {
  auto mapping = std::make_shared<const io::MappedFile>(path);
  ShardReader reader = parse(mapping->bytes(), io::escaped(path.string()));
  reader.file_ = std::move(mapping);
  return reader;
}

ShardReader ShardReader::parse(std::span<const std::byte> bytes, std::string_view what) {
  ShardReader reader;
  reader.what_ = what;
  reader.bytes_ = bytes;
  if (bytes.size() < sizeof(Header)) {
    refuse(reader.what_, std::to_string(bytes.size()) + " bytes, at least 128 expected");
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  check_header(header, bytes.size(), reader.what_);
  reader.info_ = from_header(header);
  reader.tokens_ = bytes.data() + sizeof(Header);
  reader.offsets_ = bytes.data() + bytes.size() - (header.documents + 1) * sizeof(std::uint64_t);
  std::uint64_t previous = 0;
  for (std::uint64_t i = 0; i <= header.documents; ++i) {
    const std::uint64_t offset = offset_at(reader.offsets_, i);
    if (i == 0 ? offset != 0 : offset < previous) {
      refuse(reader.what_, "offset of document " + std::to_string(i) + " is " +
                               std::to_string(offset) + " after " + std::to_string(previous));
    }
    previous = offset;
  }
  if (previous != header.tokens) {
    refuse(reader.what_, "the last offset is " + std::to_string(previous) + ", " +
                             std::to_string(header.tokens) + " expected");
  }
  return reader;
}

std::uint64_t ShardReader::document_begin(std::uint64_t document) const {
  if (document >= info_.documents) {
    throw Error(ErrorCode::kInvalidArgument, what_ + ": document " + std::to_string(document) +
                                                 " of " + std::to_string(info_.documents));
  }
  return offset_at(offsets_, document);
}

std::uint64_t ShardReader::document_tokens(std::uint64_t document) const {
  const std::uint64_t begin = document_begin(document);
  return offset_at(offsets_, document + 1) - begin;
}

std::uint32_t ShardReader::token(std::uint64_t index) const {
  std::uint32_t id = 0;
  std::memcpy(&id, tokens_ + index * info_.bytes_per_token, info_.bytes_per_token);
  if (id >= info_.vocab_size) {
    throw Error(ErrorCode::kIo, what_ + ": token " + std::to_string(index) + " is " +
                                    std::to_string(id) + ", outside the vocabulary of " +
                                    std::to_string(info_.vocab_size));
  }
  return id;
}

void ShardReader::copy(std::uint64_t document, std::uint64_t offset,
                       std::span<std::int64_t> out) const {
  const std::uint64_t begin = document_begin(document);
  const std::uint64_t count = document_tokens(document);
  if (offset > count || out.size() > count - offset) {
    throw Error(ErrorCode::kInvalidArgument,
                what_ + ": " + std::to_string(out.size()) + " tokens from " +
                    std::to_string(offset) + " on asked for, document " + std::to_string(document) +
                    " has " + std::to_string(count));
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = token(begin + offset + i);
}

std::vector<std::int32_t> ShardReader::document(std::uint64_t document) const {
  std::vector<std::int32_t> ids(document_tokens(document));
  const std::uint64_t begin = document_begin(document);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(token(begin + i));
  return ids;
}

std::vector<std::string> ShardReader::verify() const {
  std::vector<std::string> faults;
  if (io::sha256(bytes_.subspan(sizeof(Header))) != info_.payload_sha256) {
    faults.push_back(what_ + ": content differs from its sha256");
  }
  try {
    for (std::uint64_t i = 0; i < info_.tokens; ++i)
      token(i);
  } catch (const Error& e) {
    faults.emplace_back(e.what());
  }
  return faults;
}

TokenDataset TokenDataset::open(const std::vector<std::filesystem::path>& paths) {
  std::vector<ShardReader> shards;
  for (const auto& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      shards.push_back(ShardReader::open(path));
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == kShardExtension) inside.push_back(entry.path());
    }
    if (error || inside.empty()) {
      throw Error(ErrorCode::kIo, io::escaped(path.string()) + ": " +
                                      (error ? error.message() : "no *.kdatok files inside"));
    }
    std::sort(inside.begin(), inside.end());
    for (const auto& file : inside)
      shards.push_back(ShardReader::open(file));
  }
  return TokenDataset(std::move(shards));
}

TokenDataset::TokenDataset(std::vector<ShardReader> shards) : shards_(std::move(shards)) {
  if (shards_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "dataset: expected at least one shard");
  }
  io::Sha256 hash;
  const ShardInfo& first = shards_.front().info();
  for (const auto& shard : shards_) {
    const ShardInfo& info = shard.info();
    if (info.vocab_size != first.vocab_size || info.eos_id != first.eos_id ||
        info.tokenizer_sha256 != first.tokenizer_sha256) {
      throw Error(ErrorCode::kInvalidArgument,
                  shard.what() + ": made with another tokenizer than " + shards_.front().what());
    }
    num_tokens_ += info.tokens;
    text_bytes_ += info.text_bytes;
    first_document_.push_back(first_document_.back() + info.documents);
    const Header header = to_header(info);
    hash.update(as_bytes_of(header));
  }
  fingerprint_ = hash.finish();
}

TokenDataset TokenDataset::thinned(std::uint64_t count) const {
  TokenDataset sample = *this;
  const std::uint64_t all = num_documents();
  if (count == 0 || count >= all) return sample;
  std::vector<std::uint64_t> chosen;
  std::uint64_t tokens = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    // 128 bits: the product of two counts may leave 64.
    const auto at = static_cast<std::uint64_t>(static_cast<unsigned __int128>(i) * all / count);
    chosen.push_back(chosen_.empty() ? at : chosen_[static_cast<std::size_t>(at)]);
    tokens += document_tokens(at);
  }
  sample.chosen_ = std::move(chosen);
  sample.num_tokens_ = tokens;
  io::Sha256 hash;
  hash.update(io::to_hex(fingerprint_) + " " + std::to_string(count));
  sample.fingerprint_ = hash.finish();
  return sample;
}

std::pair<const ShardReader*, std::uint64_t> TokenDataset::locate(std::uint64_t document) const {
  if (document >= num_documents()) {
    throw Error(ErrorCode::kInvalidArgument, "dataset: document " + std::to_string(document) +
                                                 " of " + std::to_string(num_documents()));
  }
  if (!chosen_.empty()) document = chosen_[static_cast<std::size_t>(document)];
  const auto next = std::upper_bound(first_document_.begin(), first_document_.end(), document);
  const auto shard = static_cast<std::size_t>(next - first_document_.begin()) - 1;
  return {&shards_[shard], document - first_document_[shard]};
}

std::uint64_t TokenDataset::document_tokens(std::uint64_t document) const {
  const auto [shard, index] = locate(document);
  return shard->document_tokens(index);
}

void TokenDataset::copy(std::uint64_t document, std::uint64_t offset,
                        std::span<std::int64_t> out) const {
  const auto [shard, index] = locate(document);
  shard->copy(index, offset, out);
}

}  // namespace kda::text
