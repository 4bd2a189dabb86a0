#include <memory>

#include "fuzz_target.h"
#include "text/packing.h"
#include "text/shard.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  kda::fuzz::refuse_or_pass([&] {
    auto shard = kda::text::ShardReader::parse(std::as_bytes(std::span(data, size)), "fuzz");
    shard.verify();
    std::uint64_t tokens = 0;
    for (std::uint64_t i = 0; i < shard.info().documents; ++i) {
      require(shard.document_begin(i) == tokens);
      tokens += shard.document_tokens(i);
      for (const auto id : shard.document(i)) {
        require(id >= 0 && static_cast<std::uint32_t>(id) < shard.info().vocab_size);
      }
    }
    require(tokens == shard.info().tokens);
    std::vector<kda::text::ShardReader> shards;
    shards.push_back(std::move(shard));
    auto set = std::make_shared<const kda::text::TokenDataset>(std::move(shards));
    kda::text::PackingOptions options;
    options.seq_len = 5;
    options.rows = 2;
    kda::text::PackedStream stream(set, options);
    for (int i = 0; i < 3; ++i)
      require(stream.next().inputs.size() == 10);
    kda::text::HeldOutIterator held_out(set, options, 0);
    std::int64_t seen = 0;
    while (const auto batch = held_out.next())
      seen += batch->num_tokens;
    require(static_cast<std::uint64_t>(seen) == tokens);
  });
  return 0;
}
