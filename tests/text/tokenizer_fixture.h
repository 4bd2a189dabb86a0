/// Corpora and trained models that several tests share.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "text/tokenizer_trainer.h"

namespace kda::test {

/// Sentences made of a few English and Chinese words; the same for the same seed.
inline std::vector<std::string> sentences(std::size_t count, unsigned seed = 1) {
  static const std::vector<std::string> kWords = {
      "the",  "model", "training", "reads", "tokens", "and",  "writes", "a",    "loss",  "of",
      "2024", "every", "document", "ends",  "with",   "care", "模型",   "训练", "读取",  "数据",
      "每个", "文件",  "结束，",   "损失",  "下降。", "我们", "今天",   "公园", "walks", "home"};
  std::mt19937 random(seed);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text;
    const auto words = 3 + random() % 12;
    for (unsigned w = 0; w < words; ++w) {
      text += (w > 0 ? " " : "") + kWords[random() % kWords.size()];
    }
    out.push_back(std::move(text));
  }
  return out;
}

inline text::DocumentFeed feed(std::vector<std::string> documents) {
  return [documents = std::move(documents)](const auto& sink) {
    for (const auto& d : documents)
      sink(d);
  };
}

inline text::TokenizerTrainOptions train_options(text::TokenizerModel model,
                                                 std::int32_t vocab_size = 400) {
  text::TokenizerTrainOptions o;
  o.model = model;
  o.vocab_size = vocab_size;
  return o;
}

inline const text::Tokenizer& small_tokenizer(
    text::TokenizerModel model = text::TokenizerModel::kBpe) {
  static const auto train = [](text::TokenizerModel m) {
    return text::Tokenizer::from_bytes(
        text::train_tokenizer(feed(sentences(400)), train_options(m)).model_bytes);
  };
  static const text::Tokenizer kBpe = train(text::TokenizerModel::kBpe);
  static const text::Tokenizer kUnigram = train(text::TokenizerModel::kUnigram);
  return model == text::TokenizerModel::kBpe ? kBpe : kUnigram;
}

/// Random text of every kind of character, white space and marks included; always valid UTF-8.
std::string random_text(std::mt19937& random, std::size_t characters);

}  // namespace kda::test
