/// Datasets and tokenizers for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/io_test_support.h"
#include "text/shard.h"

namespace kda::test {

using Documents = std::vector<std::vector<std::int32_t>>;

inline void write_shard(const std::filesystem::path& path, const Documents& documents,
                        std::uint32_t vocab_size = 100, std::uint32_t eos_id = 2,
                        const std::string& tokenizer = "tokenizer") {
  text::ShardWriter writer(path, vocab_size, eos_id, io::sha256(tokenizer));
  for (const auto& ids : documents)
    writer.add_document(ids, 10 * ids.size());
  writer.commit();
}

inline std::shared_ptr<const text::TokenDataset> dataset(const TempFolder& folder,
                                                         const Documents& documents,
                                                         std::uint32_t vocab_size = 100) {
  static int counter = 0;
  const auto path = folder / ("d" + std::to_string(counter++) + ".kdatok");
  write_shard(path, documents, vocab_size);
  return std::make_shared<const text::TokenDataset>(text::TokenDataset::open({path}));
}

}  // namespace kda::test
