/// Writes valid files of the binary kinds as starting points for the fuzzers: fuzz_make_seeds
/// FOLDER.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors_writer.h"
#include "text/shard.h"
#include "text/tokenizer_trainer.h"

namespace {

using namespace kda;

void safetensors_seeds(const std::filesystem::path& folder) {
  const std::vector<std::byte> data(64);
  io::SafetensorsWriter writer(folder / "two",
                               {{"w", io::StDtype::kF32, {2, 3}},
                                {"e", io::StDtype::kBF16, {0, 4}},
                                {"b", io::StDtype::kU8, {}}},
                               {{"format", "pt"}});
  writer.write(std::span(data).first(25));
  writer.commit();
  io::SafetensorsWriter(folder / "none", {}).commit();
}

void shard_seeds(const std::filesystem::path& folder) {
  for (const std::uint32_t vocab : {50u, 70000u}) {
    text::ShardWriter writer(folder / std::to_string(vocab), vocab, 2, {});
    writer.add_document(std::vector<std::int32_t>{5, 6, 7, 2}, 9);
    writer.add_document(std::vector<std::int32_t>{}, 0);
    writer.add_document(std::vector<std::int32_t>{49, 2}, 1);
    writer.commit();
  }
}

void model_seeds(const std::filesystem::path& folder) {
  for (const auto model : {text::TokenizerModel::kBpe, text::TokenizerModel::kUnigram}) {
    text::TokenizerTrainOptions options;
    options.model = model;
    options.vocab_size = 320;
    options.user_symbols = {"\n"};
    const auto result = text::train_tokenizer(
        [](const auto& sink) {
          sink("the quick brown fox jumps over the lazy dog the fox 12 今天 天气 今天");
        },
        options);
    io::write_file_atomic(folder / (model == text::TokenizerModel::kBpe ? "bpe" : "unigram"),
                          result.model_bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::filesystem::path root = argv[1];
  for (const char* name : {"safetensors", "shard", "tokenizer_model"}) {
    std::filesystem::create_directories(root / name);
  }
  safetensors_seeds(root / "safetensors");
  shard_seeds(root / "shard");
  model_seeds(root / "tokenizer_model");
  return 0;
}
