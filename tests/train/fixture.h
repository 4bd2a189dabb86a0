/// What the trainer's tests share: a scratch folder, a small bilingual corpus, a tokenizer, short
/// runs and what they said.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "kda/error.h"
#include "text/tokenizer.h"
#include "train/report.h"
#include "train/trainer.h"

namespace kda::train::testing {

/// A folder of its own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);

/// `count` short documents, alternately Chinese and English, all different.
std::vector<std::string> documents(int count, int offset = 0);

/// A corpus folder (pretrain.zh.txt, pretrain.en.txt, heldout.txt) and a tokenizer trained on it;
/// made once per process.
const std::filesystem::path& corpus_folder();
const std::filesystem::path& tokenizer_file();
const text::Tokenizer& tokenizer();

/// Remembers all records.
class RecordingReporter : public Reporter {
 public:
  void note(std::string_view text) override { notes.emplace_back(text); }
  void warn(std::string_view text) override { warnings.emplace_back(text); }
  void step(const StepRecord& record, bool) override { steps.push_back(record); }
  void evaluation(const EvalRecord& record) override { evaluations.push_back(record); }
  void sample(const SampleRecord& record) override { samples.push_back(record); }
  void saved(const SaveRecord& record) override { saves.push_back(record); }
  bool has_note(std::string_view start) const {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& note) { return note.starts_with(start); });
  }

  std::vector<std::string> notes;
  std::vector<std::string> warnings;
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;
  std::vector<SampleRecord> samples;
  std::vector<SaveRecord> saves;
};

/// A tiny model on the corpus, 2 x 32 tokens per micro-batch.
TrainRequest tiny_request(const std::filesystem::path& out, std::int64_t steps);

/// sha256 of every tensor file of a checkpoint.
std::map<std::string, std::string> tensor_hashes(const std::filesystem::path& checkpoint);

/// metrics.jsonl without the fields that depend on the machine's speed, and without "save" and
/// "resume" records.
std::vector<std::string> loss_lines(const std::filesystem::path& run);

/// Runs `body` and returns the text of the kda::Error that it throws, checking its code.
std::string error_text(ErrorCode code, const std::function<void()>& body);

}  // namespace kda::train::testing
