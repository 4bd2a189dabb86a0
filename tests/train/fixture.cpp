#include "train/fixture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "io/atomic_file.h"
#include "io/jsonl_log.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "text/tokenizer_trainer.h"
#include "train/signals.h"

namespace kda::train::testing {
namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  static std::atomic<int> counter{0};
  path_ = fs::temp_directory_path() /
          ("kda-train-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  fs::create_directories(path_);
  clear_stop();
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  clear_stop();
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> documents(int count, int offset) {
  const char* who[] = {"小猫",      "老师",    "程序",    "河水",
                       "the clerk", "a stone", "our cat", "this file"};
  const char* what[] = {"在山上", "走过桥", "打开门",  "读一本书",
                        "reads",  "opens",  "crosses", "remembers"};
  const char* where[] = {
      "，天亮了。",    "，没有人知道。",   "，雨停了！",         "？",
      " the old map.", " nothing at all.", " a river at night.", " two letters."};
  std::vector<std::string> list;
  for (int n = 0; n < count; ++n) {
    const int i = n + offset;
    const int base = i % 2 == 0 ? 0 : 4;
    const std::string space = base == 0 ? "" : " ";
    list.push_back(std::string(who[base + i / 2 % 4]) + space + what[base + i / 8 % 4] +
                   where[base + i / 32 % 4] + (base == 0 ? "第" : " No ") + std::to_string(i) +
                   ".");
  }
  return list;
}

const fs::path& corpus_folder() {
  static const ScratchFolder scratch;
  static const fs::path folder = [] {
    const fs::path path = scratch / "corpus";
    fs::create_directories(path);
    std::string zh;
    std::string en;
    std::string heldout;
    const std::vector<std::string> all = documents(160);
    for (std::size_t i = 0; i < all.size(); ++i) {
      (i % 2 == 0 ? zh : en) += all[i] + "\n\n";
    }
    for (const std::string& text : documents(30, 1000))
      heldout += text + "\n\n";
    write_text(path / "pretrain.zh.txt", zh);
    write_text(path / "pretrain.en.txt", en);
    write_text(path / "heldout.txt", heldout);
    return path;
  }();
  return folder;
}

const fs::path& tokenizer_file() {
  static const fs::path file = [] {
    text::TokenizerTrainOptions options;
    options.vocab_size = 400;
    const std::vector<std::string> all = documents(160);
    const text::TokenizerTrainResult result = text::train_tokenizer(
        [&](const std::function<void(std::string_view)>& sink) {
          for (const std::string& text : all)
            sink(text);
        },
        options);
    const fs::path path = corpus_folder() / "spm.model";
    write_text(path, result.model_bytes);
    return path;
  }();
  return file;
}

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer loaded = text::Tokenizer::load(tokenizer_file());
  return loaded;
}

TrainRequest tiny_request(const fs::path& out, std::int64_t steps) {
  TrainRequest request;
  TrainOptions& o = request.options;
  o.data = corpus_folder().string();
  o.tokenizer = tokenizer_file().string();
  o.preset = "tiny";
  o.out = out.string();
  o.steps.value = steps;
  o.batch = 2;
  o.seq_len = 32;
  o.lr = 3e-3;
  o.threads = 1;
  o.device = "cpu";
  o.eval_every = {};
  o.sample_every = {};
  o.save_every = {};
  o.log_every = {1, PeriodUnit::kUpdates};
  request.given_keys = {"data",    "tokenizer", "preset",  "out",    "steps",    "batch",
                        "seq_len", "lr",        "threads", "device", "log_every"};
  return request;
}

std::map<std::string, std::string> tensor_hashes(const fs::path& checkpoint) {
  std::map<std::string, std::string> hashes;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    hashes[name] = io::to_hex(io::sha256_file(checkpoint / name));
  }
  return hashes;
}

std::vector<std::string> loss_lines(const fs::path& run) {
  std::vector<std::string> lines;
  for (const io::Json& record : io::read_jsonl(run / "metrics.jsonl")) {
    if (record.at("kind") == "save" || record.at("kind") == "resume") continue;
    io::Json kept = io::Json::object();
    for (const auto& item : record.items()) {
      if (!is_timing_key(item.key())) kept[item.key()] = item.value();
    }
    lines.push_back(kept.dump());
  }
  return lines;
}

std::string error_text(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), std::string(name_of(code))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no kda::Error was thrown";
  return {};
}

}  // namespace kda::train::testing
