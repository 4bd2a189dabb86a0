#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "cli/standard_input.h"
#include "cli/table.h"
#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/sha256.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "text/corpus_reader.h"
#include "text/tokenizer.h"
#include "text/tokenizer_trainer.h"
#include "train/dataset.h"
#include "train/options.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

struct TrainTokenizer {
  std::vector<std::string> data;
  std::string out;
  std::string type = "bpe";
  train::Count vocab_size{8192};
  train::Count max_bytes{64'000'000};
  double coverage = 0.9995;
  std::int64_t seed = 0;
};

fs::path model_path(const std::string& out) {
  fs::path path = out;
  if (path.extension() != ".model") path += ".model";
  return path;
}

int run_tokenizer_train(const TrainTokenizer& command) {
  // SentencePiece cannot be asked to stop; the file appears whole at the end or not at all.
  const train::SignalScope signals(train::OnSignal::kLeave);
  text::TokenizerTrainOptions options;
  if (command.type == "unigram") {
    options.model = text::TokenizerModel::kUnigram;
  } else if (command.type != "bpe") {
    throw Error(ErrorCode::kInvalidArgument,
                "--type: expected bpe or unigram, got '" + command.type + "'");
  }
  if (command.vocab_size.value > (1 << 24)) {
    throw Error(ErrorCode::kInvalidArgument, "--vocab-size: expected at most 16777216, got " +
                                                 std::to_string(command.vocab_size.value));
  }
  options.vocab_size = static_cast<std::int32_t>(command.vocab_size.value);
  options.max_bytes = static_cast<std::uint64_t>(command.max_bytes.value);
  options.character_coverage = command.coverage;
  options.seed = static_cast<std::uint64_t>(command.seed);
  std::vector<fs::path> files;
  for (const std::string& name : command.data) {
    const train::DataFiles found = train::find_data(name);
    if (found.train.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--data: " + name + " holds token shards; a tokenizer is trained on text");
    }
    files.insert(files.end(), found.train.begin(), found.train.end());
  }
  const fs::path path = model_path(command.out);
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  std::string names;
  for (const fs::path& file : files)
    names += (names.empty() ? "" : ", ") + file.string();
  std::printf("training a %s tokenizer, %d pieces, on %s\n", command.type.c_str(),
              options.vocab_size, names.c_str());
  std::fflush(stdout);
  const auto start = std::chrono::steady_clock::now();
  const text::TokenizerTrainResult result = text::train_tokenizer(
      [&](const std::function<void(std::string_view)>& sink) {
        text::read_corpus(files, {}, [&](const text::CorpusDocument& document) {
          sink(document.text);
          return true;
        });
      },
      options);
  for (const std::string& warning : result.warnings)
    print_warning("tokenizer train", warning);
  const text::Tokenizer tokenizer = text::Tokenizer::from_bytes(result.model_bytes, path.string());
  io::write_file_atomic(path, result.model_bytes);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s: %d pieces, %s of %s of text used, %.1f s, sha256 %s\n", path.c_str(),
              tokenizer.vocab_size(),
              train::short_bytes(static_cast<double>(result.used_bytes)).c_str(),
              train::short_bytes(static_cast<double>(result.corpus_bytes)).c_str(), seconds,
              io::to_hex(tokenizer.info().sha256).substr(0, 16).c_str());
  return kDone;
}

/// The text of --text, of a file, or of standard input.
std::string input_text(const std::string& given, const std::string& file) {
  if (!given.empty() && !file.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "TEXT and --file exclude each other: give one");
  }
  if (!given.empty()) return given;
  if (!file.empty() && file != "-") return io::read_file(file);
  return read_standard_input();
}

int run_encode(const std::string& model, const std::string& text, const std::string& file,
               bool pieces) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  std::istringstream lines(input_text(text, file));
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    if (const auto bad = io::find_invalid_utf8(line); bad != line.size()) {
      throw Error(ErrorCode::kInvalidArgument, "line " + std::to_string(number) +
                                                   ": expected UTF-8, byte " +
                                                   std::to_string(bad + 1) + " is not");
    }
    std::string out;
    for (std::int32_t id : tokenizer.encode(line)) {
      out += (out.empty() ? "" : " ") + (pieces ? tokenizer.piece(id) : std::to_string(id));
    }
    std::printf("%s\n", out.c_str());
  }
  return kDone;
}

int run_decode(const std::string& model, const std::string& text, const std::string& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  std::istringstream lines(input_text(text, file));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    std::vector<std::int32_t> ids;
    while (words >> word) {
      std::int64_t id = 0;
      train::parse_text(word, "id", id);
      if (id < 0 || id >= tokenizer.vocab_size()) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "id: expected 0 to " + std::to_string(tokenizer.vocab_size() - 1) + ", got " + word);
      }
      ids.push_back(static_cast<std::int32_t>(id));
    }
    const std::string out = tokenizer.decode(ids) + "\n";
    std::fwrite(out.data(), 1, out.size(), stdout);  // the text may hold a NUL
  }
  return kDone;
}

int run_inspect(const std::string& model, const std::string& text) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  const text::TokenizerInfo& info = tokenizer.info();
  std::printf("file         %s\nsha256       %s\ntype         %s\n", model.c_str(),
              io::to_hex(info.sha256).c_str(), info.model_type.c_str());
  std::printf("pieces       %d\nspecial      unk %d, bos %d, eos %d, pad %d\n", info.vocab_size,
              info.unk_id, info.bos_id, info.eos_id, info.pad_id);
  std::printf("normalizer   %s\nbyte pieces  %s\nlossless     %s\n", info.normalizer.c_str(),
              info.byte_fallback ? "yes" : "no",
              info.lossless ? "yes: every text comes back byte by byte" : "no");
  for (const std::string& warning : info.warnings)
    std::printf("note         %s\n", warning.c_str());
  std::int64_t han = 0;
  std::int64_t ascii = 0;
  std::int64_t characters = 0;
  for (std::int32_t id = 0; id < info.vocab_size; ++id) {
    if (tokenizer.piece_type(id) != text::PieceType::kNormal) continue;
    const std::string& piece = tokenizer.piece(id);
    if (display_width(piece) > 1 && io::utf8_step(piece).code_point >= 0x2E80) {
      ++han;
    } else {
      ++ascii;
    }
    if (io::utf8_step(piece).length == piece.size()) ++characters;
  }
  std::printf(
      "content      %lld pieces start with a CJK character, %lld do not, %lld are single "
      "characters\n",
      static_cast<long long>(han), static_cast<long long>(ascii),
      static_cast<long long>(characters));
  if (text.empty()) return kDone;
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  Table table({">id", "piece", "type", ">bytes"});
  for (std::int32_t id : ids) {
    table.add({std::to_string(id), tokenizer.piece(id),
               std::string(text::name_of(tokenizer.piece_type(id))),
               std::to_string(tokenizer.token_bytes()[static_cast<std::size_t>(id)])});
  }
  std::printf("\n%s%zu tokens, %.2f bytes per token, decode gives %s\n", table.text().c_str(),
              ids.size(), static_cast<double>(text.size()) / static_cast<double>(ids.size()),
              tokenizer.decode(ids) == text ? "the same text" : "another text");
  return kDone;
}

void add_tokenizer_train(CLI::App* parent) {
  CLI::App* verb = add_verb(
      *parent, "train", "Train a SentencePiece tokenizer that loses nothing",
      "  kda tokenizer train --data data/tiny --vocab-size 1024 --out data/tiny/spm\n"
      "  kda tokenizer train --data my.txt --type unigram --vocab-size 16k --out spm16k.model");
  auto command = std::make_shared<TrainTokenizer>();
  verb->add_option("--data", command->data, "Folder of `kda data build` or text file; repeatable")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("PATH")
      ->required();
  verb->add_option("--out", command->out, "Where to write; .model is added when missing")
      ->type_name("FILE")
      ->required();
  verb->add_option_function<std::string>(
          "--vocab-size",
          [command](const std::string& text) {
            train::parse_text(text, "--vocab-size", command->vocab_size);
          },
          "Pieces, special and byte pieces included; shrunk with a warning when the text is small")
      ->type_name("COUNT")
      ->default_str("8192");
  verb->add_option("--type", command->type, "bpe or unigram")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option_function<std::string>(
          "--max-bytes",
          [command](const std::string& text) {
            train::parse_text(text, "--max-bytes", command->max_bytes);
          },
          "Text to train on at most; more is sampled evenly")
      ->type_name("COUNT")
      ->default_str("64M");
  add_real(verb, "--coverage", command->coverage,
           "Share of the characters that get a piece of their own");
  add_whole(verb, "--seed", command->seed, {}, "Seed of the sampling");
  on_run(verb, [command] { return run_tokenizer_train(*command); });
}

struct CodecCommand {
  std::string model;
  std::string text;
  std::string file;
  bool pieces = false;
};

std::shared_ptr<CodecCommand> add_codec(CLI::App* verb, const char* what, bool with_file) {
  auto command = std::make_shared<CodecCommand>();
  verb->add_option("model", command->model, "Tokenizer file")->type_name("MODEL")->required();
  verb->add_option("text", command->text, what)->type_name("TEXT");
  if (with_file) {
    verb->add_option("--file", command->file, "Read lines from this file; -: standard input")
        ->type_name("FILE");
  }
  return command;
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* tokenizer = add_verb(
      app, "tokenizer", "Train, use and inspect tokenizers: train, encode, decode, inspect");
  tokenizer->require_subcommand(1);
  add_tokenizer_train(tokenizer);

  CLI::App* encode = add_verb(*tokenizer, "encode", "Text to ids, line by line",
                              "  kda tokenizer encode spm.model \"Hello, 世界\"\n"
                              "  kda tokenizer encode spm.model --file notes.txt --pieces");
  auto e = add_codec(encode, "Text; without it lines come from --file or standard input", true);
  encode->add_flag("--pieces", e->pieces, "Print pieces instead of ids");
  on_run(encode, [e] { return run_encode(e->model, e->text, e->file, e->pieces); });

  CLI::App* decode = add_verb(*tokenizer, "decode", "Ids to text, line by line",
                              "  kda tokenizer decode spm.model \"260 1046 17\"");
  auto d = add_codec(decode, "Ids; without them lines come from --file or standard input", true);
  on_run(decode, [d] { return run_decode(d->model, d->text, d->file); });

  CLI::App* inspect =
      add_verb(*tokenizer, "inspect", "What a tokenizer file is, and how it cuts a text",
               "  kda tokenizer inspect spm.model \"他说：“好。”\"");
  auto i = add_codec(inspect, "Text to cut", false);
  on_run(inspect, [i] { return run_inspect(i->model, i->text); });
}

}  // namespace kda::cli
