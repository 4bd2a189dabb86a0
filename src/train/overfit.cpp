#include "train/overfit.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "io/utf8.h"
#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/config.h"
#include "model/generate.h"
#include "train/adamw.h"
#include "train/evaluate.h"
#include "train/signals.h"

namespace kda::train {
namespace {

constexpr std::int64_t kBos = 256;
constexpr std::int64_t kEos = 257;
constexpr std::int64_t kVocab = 258;

const std::vector<std::string>& default_sentences() {
  static const std::vector<std::string> kSentences{
      "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。",
      "The state forgets channel by channel, and what it keeps it can correct.",
  };
  return kSentences;
}

std::vector<std::int64_t> ids_of(const std::string& text) {
  std::vector<std::int64_t> ids{kBos};
  for (char c : text)
    ids.push_back(static_cast<unsigned char>(c));
  ids.push_back(kEos);
  return ids;
}

/// All sentences side by side as one packed row.
text::PackedBatch batch_of(const std::vector<std::string>& sentences) {
  text::PackedBatch batch;
  batch.rows = 1;
  batch.cu_seqlens.push_back(0);
  for (const std::string& sentence : sentences) {
    const std::vector<std::int64_t> ids = ids_of(sentence);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      batch.inputs.push_back(ids[i]);
      batch.targets.push_back(ids[i + 1]);
    }
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(batch.inputs.size()));
  }
  batch.seq_len = static_cast<std::int64_t>(batch.inputs.size());
  batch.num_targets = batch.seq_len;
  return batch;
}

/// The first `count` characters of a text, in bytes.
std::string first_characters(const std::string& text, int count) {
  std::size_t end = 0;
  for (int i = 0; i < count && end < text.size(); ++i) {
    end += io::utf8_step(std::string_view(text).substr(end)).length;
  }
  return text.substr(0, end);
}

}  // namespace

OverfitResult overfit(const OverfitOptions& options,
                      const std::function<void(const OverfitStep&)>& on_step) {
  const std::vector<std::string>& sentences =
      options.sentences.empty() ? default_sentences() : options.sentences;
  for (const std::string& sentence : sentences) {
    if (sentence.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "sentence: expected some text, got none");
    }
  }
  model::KDAConfig config = model::KDAConfig::preset("tiny");
  config.vocab_size = kVocab;
  config.bos_id = kBos;
  config.eos_id = kEos;
  config.pad_id = -1;
  model::ModelOptions model_options;
  model_options.seed = options.seed;
  model_options.backend = options.backend;
  const model::CausalLM model(config, model_options);
  AdamW optimizer(model.parameters(), {});

  const text::PackedBatch batch = batch_of(sentences);
  const BatchTensors tensors = to_tensors(batch);
  OverfitResult result;
  result.parameters = model.num_parameters();
  result.tokens = batch.num_targets;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (result.steps < options.max_steps && result.seconds < options.max_seconds) {
    poll_stop();
    const model::LossOutput loss = model.loss(tensors.packed, tensors.targets);
    const double mean = loss.loss_sum.item<double>() / static_cast<double>(loss.num_tokens);
    loss.loss_sum.div(static_cast<double>(loss.num_tokens)).backward();
    const GradientStats gradients = optimizer.gradient_stats();
    if (!std::isfinite(mean) || gradients.num_nonfinite > 0) {
      throw Error(
          ErrorCode::kNonFinite,
          "step " + std::to_string(result.steps + 1) + ": loss or gradient is not finite" +
              (gradients.nearest_nonfinite.empty() ? std::string()
                                                   : " (" + gradients.nearest_nonfinite + ")"));
    }
    if (result.steps == 0) result.first_loss = mean;
    result.last_loss = mean;
    ++result.steps;
    result.seconds = elapsed();
    if (on_step) on_step({result.steps, mean, gradients.norm, result.seconds});
    if (mean < options.target_loss) {
      result.reached = true;
      break;
    }
    optimizer.step(options.lr, clip_scale(gradients.norm, 1.0));
    optimizer.clear_gradients();
  }

  result.reproduced = true;
  for (const std::string& sentence : sentences) {
    const std::string prompt = first_characters(sentence, 3);
    std::vector<std::int64_t> ids = ids_of(prompt);
    ids.pop_back();  // EOS is what the model has to find by itself
    model::GenerateOptions generate;
    generate.max_new_tokens = static_cast<std::int64_t>(sentence.size()) + 8;
    generate.stop_ids = {kEos};
    const model::GeneratedRow row = model::generate(model, {ids}, generate).front();
    std::string text;
    for (std::int64_t id : row.ids) {
      if (id < 256) text += static_cast<char>(id);
    }
    result.reproduced =
        result.reproduced && prompt + text == sentence && row.reason == model::FinishReason::kStop;
    result.prompts.push_back(prompt);
    result.continuations.push_back(io::replace_invalid_utf8(text));
  }
  result.seconds = elapsed();
  return result;
}

}  // namespace kda::train
