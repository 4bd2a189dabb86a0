#include "text/tokenizer_trainer.h"

#include <sentencepiece/sentencepiece_model.pb.h>
#include <sentencepiece/sentencepiece_trainer.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "io/escape.h"
#include "io/number_text.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "text/model_check.h"
#include "text/random.h"
#include "text/tokenizer_impl.h"

namespace kda::text {
namespace {

namespace sp = sentencepiece;

constexpr std::size_t kMaxLineBytes = 4096;
// Sums of probabilities are cut into this many parts, whatever the machine: part of the format.
constexpr int kTrainerThreads = 4;
constexpr std::size_t kFewLines = 1000;
constexpr int kBytePieces = 256;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// Pieces that exist before anything is learned.
std::int64_t fixed_pieces(const TokenizerTrainOptions& options) {
  return kBytePieces + (options.bos_id >= 0 ? 4 : 3) +
         static_cast<std::int64_t>(options.control_symbols.size() + options.user_symbols.size());
}

void check_symbol(const std::string& symbol, bool control, std::set<std::string>& seen) {
  const std::string name = (control ? "control_symbols: " : "user_symbols: ") + io::escaped(symbol);
  if (!io::is_utf8(symbol) || symbol.find('\0') != std::string::npos) {
    refuse(name + ": expected UTF-8 without NUL");
  }
  if (symbol.find(' ') != std::string::npos || symbol.find(kSpaceMark) != std::string::npos) {
    refuse(name + ": expected no spaces");
  }
  // A control piece of one character would be produced by that character in text.
  const auto first = symbol.empty() ? 0 : io::utf8_step(symbol).length;
  if (symbol.empty() || (control && symbol.size() == first)) {
    refuse(name + ": expected at least " + (control ? "two characters" : "one character"));
  }
  if (symbol.size() > 256) refuse(name + ": expected at most 256 bytes");
  if (!seen.insert(symbol).second) refuse(name + ": given twice");
}

void check(const TokenizerTrainOptions& options) {
  std::map<std::int32_t, std::string> ids;
  const auto claim = [&](std::int32_t id, const std::string& name) {
    if (id < 0 || id >= options.vocab_size) {
      refuse(name + ": expected 0 to " + std::to_string(options.vocab_size - 1) + ", got " +
             std::to_string(id));
    }
    const auto [it, fresh] = ids.emplace(id, name);
    if (!fresh) refuse(name + ": the same as " + it->second + ", " + std::to_string(id));
  };
  constexpr std::int32_t kMaxVocab = 1 << 20;
  const std::int64_t fixed = fixed_pieces(options);
  if (options.vocab_size <= fixed || options.vocab_size > kMaxVocab) {
    refuse("vocab_size: expected more than the " + std::to_string(fixed) +
           " byte, special and extra pieces, and at most 2^20, got " +
           std::to_string(options.vocab_size));
  }
  claim(options.unk_id, "unk_id");
  if (options.bos_id != -1) claim(options.bos_id, "bos_id");
  claim(options.eos_id, "eos_id");
  claim(options.pad_id, "pad_id");
  if (!(options.character_coverage > 0 && options.character_coverage <= 1)) {
    refuse("character_coverage: expected a number in (0, 1], got " +
           io::number_text(options.character_coverage));
  }
  if (options.max_piece_chars < 1 || options.max_piece_chars > 512) {
    refuse("max_piece_chars: expected 1 to 512, got " + std::to_string(options.max_piece_chars));
  }
  if (options.max_bytes == 0) refuse("max_bytes: expected more than 0");
  std::set<std::string> seen{"<unk>", "<s>", "</s>", "<pad>"};
  std::vector<std::string_view> user_symbols;
  for (const auto& symbol : options.control_symbols)
    check_symbol(symbol, true, seen);
  for (const auto& symbol : options.user_symbols) {
    check_symbol(symbol, false, seen);
    user_symbols.emplace_back(symbol);
  }
  if (longest_prefix_chain(std::move(user_symbols)) > 60) {
    refuse("user_symbols: more than 60 are prefixes of each other");
  }
}

/// Characters that end a piece anyway, so that lines may be cut after them: long runs of Chinese
/// have no spaces, and the trainer's time grows with the square of an unbroken run.
bool ends_clause(char32_t c) {
  return (c >= 0x3001 && c <= 0x3003) || c == 0xFF0C || c == 0xFF01 || c == 0xFF1F || c == 0xFF1A ||
         c == 0xFF1B;
}

/// Characters that the trainer cannot take: its own marks, line ends, tab (its boundary), NUL.
bool is_separator(char32_t c) {
  return c == 0 || c == '\n' || c == '\r' || c == '\t' || c == 0x2581 || c == 0x2585;
}

/// Cuts a document into lines of at most kMaxLineBytes without separators.
template <class Sink>
void for_each_line(std::string_view text, const Sink& sink) {
  std::size_t begin = 0;
  std::size_t last_space = 0;  // where the line may be cut when it grows too long
  std::size_t at = 0;
  const auto emit = [&](std::size_t end) {
    if (end > begin) sink(text.substr(begin, end - begin));
  };
  while (at < text.size()) {
    const io::Utf8Step step = io::utf8_step(text.substr(at));
    if (is_separator(step.code_point)) {
      emit(at);
      begin = at + step.length;
    } else if (ends_clause(step.code_point)) {
      emit(at + step.length);
      begin = at + step.length;
    } else {
      if (step.code_point == ' ') last_space = at;
      if (at + step.length - begin > kMaxLineBytes) {
        const std::size_t cut = last_space > begin ? last_space : at;
        emit(cut);
        begin = cut;
      }
    }
    at += step.length;
  }
  emit(text.size());
}

/// The lines trained on, end to end.
class Lines {
 public:
  void add(std::string_view line) {
    text_ += line;
    ends_.push_back(text_.size());
  }
  std::size_t size() const { return ends_.size(); }
  std::uint64_t bytes() const { return text_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;
};

struct Corpus {
  Lines lines;
  std::uint64_t offered = 0;
};

Corpus collect(const DocumentFeed& documents, const TokenizerTrainOptions& options) {
  Corpus corpus;
  std::uint64_t number = 0;
  documents([&](std::string_view text) {
    ++number;
    if (const auto bad = io::find_invalid_utf8(text); bad != text.size()) {
      refuse("document " + std::to_string(number) + ": byte " + std::to_string(bad) +
             " is not UTF-8");
    }
    corpus.offered += text.size();
  });
  const bool sample = corpus.offered > options.max_bytes;
  const double share = static_cast<double>(options.max_bytes) /
                       static_cast<double>(std::max(corpus.offered, options.max_bytes));
  std::uint64_t index = 0;
  documents([&](std::string_view text) {
    for_each_line(text, [&](std::string_view line) {
      SplitMix64 random(options.seed, index++);
      if (sample && static_cast<double>(random.next() >> 11) * 0x1.0p-53 >= share) return;
      if (corpus.lines.bytes() + line.size() > options.max_bytes) return;
      corpus.lines.add(line);
    });
  });
  return corpus;
}

/// Characters that get pieces: ASCII, then the most frequent ones up to the coverage and the room.
class Alphabet {
 public:
  Alphabet(const Lines& lines, double coverage, std::size_t room) {
    std::unordered_map<char32_t, std::uint64_t> counts;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (std::string_view rest = lines[i]; !rest.empty();) {
        const io::Utf8Step step = io::utf8_step(rest);
        ++counts[step.code_point];
        ++total;
        rest.remove_prefix(step.length);
      }
    }
    blank_ = counts.empty() || (counts.size() == 1 && counts.contains(U' '));
    distinct_ = counts.size();
    std::vector<std::pair<char32_t, std::uint64_t>> order(counts.begin(), counts.end());
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    // ASCII first, whatever its frequency: digits and letters are wanted in any text to come.
    std::stable_partition(order.begin(), order.end(), [](const auto& e) { return e.first < 0x80; });
    const double wanted = coverage * static_cast<double>(total);
    std::uint64_t covered = 0;
    for (const auto& [c, count] : order) {
      if (c >= 0x80 && static_cast<double>(covered) >= wanted) break;
      if (kept_.size() == room) {
        limited_by_room_ = true;
        break;
      }
      kept_.insert(c);
      covered += count;
    }
    covered_share_ = total == 0 ? 0 : static_cast<double>(covered) / static_cast<double>(total);
  }

  bool blank() const { return blank_; }
  bool contains(char32_t c) const { return kept_.contains(c); }
  bool limited_by_room() const { return limited_by_room_; }
  std::size_t size() const { return kept_.size(); }
  std::size_t distinct() const { return distinct_; }
  double covered_share() const { return covered_share_; }

 private:
  std::unordered_set<char32_t> kept_;
  std::size_t distinct_ = 0;
  double covered_share_ = 0;
  bool blank_ = true;
  bool limited_by_room_ = false;
};

/// Hands the lines to the library, cut at characters outside the alphabet, `rounds` times.
class LineIterator final : public sp::SentenceIterator {
 public:
  LineIterator(const Lines& lines, const Alphabet& alphabet, std::size_t rounds)
      : lines_(lines), alphabet_(alphabet), rounds_(rounds) {
    Next();
  }
  bool done() const override { return done_; }
  void Next() override {
    value_.clear();
    while (value_.empty()) {
      if (rest_.empty()) {
        if (index_ == lines_.size()) {
          if (--rounds_ == 0) {
            done_ = true;
            return;
          }
          index_ = 0;
        }
        rest_ = lines_[index_++];
      }
      while (!rest_.empty()) {
        const io::Utf8Step step = io::utf8_step(rest_);
        const bool kept = alphabet_.contains(step.code_point);
        if (kept) value_ += rest_.substr(0, step.length);
        rest_.remove_prefix(step.length);
        if (!kept) break;
      }
    }
  }
  const std::string& value() const override { return value_; }
  sp::util::Status status() const override { return {}; }

 private:
  const Lines& lines_;
  const Alphabet& alphabet_;
  std::size_t rounds_;
  std::size_t index_ = 0;
  std::string_view rest_;
  std::string value_;
  bool done_ = false;
};

sp::TrainerSpec trainer_spec(const TokenizerTrainOptions& options) {
  sp::TrainerSpec spec;
  spec.set_model_type(options.model == TokenizerModel::kBpe ? sp::TrainerSpec::BPE
                                                            : sp::TrainerSpec::UNIGRAM);
  spec.set_vocab_size(options.vocab_size);
  spec.set_hard_vocab_limit(false);   // a vocabulary that cannot be filled is shrunk
  spec.set_character_coverage(1.0F);  // the alphabet was chosen above
  spec.set_byte_fallback(true);
  spec.set_split_digits(options.split_digits);
  spec.set_allow_whitespace_only_pieces(true);
  spec.set_max_sentencepiece_length(options.max_piece_chars);
  spec.set_max_sentence_length(static_cast<int>(2 * kMaxLineBytes));
  spec.set_shuffle_input_sentence(false);
  spec.set_num_threads(kTrainerThreads);
  spec.set_unk_id(options.unk_id);
  spec.set_bos_id(options.bos_id);
  spec.set_eos_id(options.eos_id);
  spec.set_pad_id(options.pad_id);
  for (const auto& symbol : options.control_symbols)
    spec.add_control_symbols(symbol);
  for (const auto& symbol : options.user_symbols)
    spec.add_user_defined_symbols(symbol);
  return spec;
}

std::string percent(double share) {
  std::string text = std::to_string(100 * share);
  return text.substr(0, text.find('.') + 4) + " %";
}

}  // namespace

TokenizerTrainResult train_tokenizer(const DocumentFeed& documents,
                                     const TokenizerTrainOptions& options) {
  silence_sentencepiece();
  check(options);
  TokenizerTrainResult result;
  const Corpus corpus = collect(documents, options);
  result.corpus_bytes = corpus.offered;
  result.used_bytes = corpus.lines.bytes();
  if (corpus.offered > options.max_bytes) {
    result.warnings.push_back("trained on a sample of " + std::to_string(result.used_bytes) +
                              " of " + std::to_string(corpus.offered) + " bytes");
  }
  // At least a quarter of what can be learned is left for pieces of several characters.
  const std::int64_t room = (options.vocab_size - fixed_pieces(options)) * 3 / 4;
  const Alphabet alphabet(corpus.lines, options.character_coverage,
                          static_cast<std::size_t>(std::max<std::int64_t>(1, room)));
  if (alphabet.blank()) refuse("text: expected something to train on, got only white space");
  if (alphabet.limited_by_room()) {
    result.warnings.push_back("the vocabulary has room for " + std::to_string(alphabet.size()) +
                              " of " + std::to_string(alphabet.distinct()) + " characters (" +
                              percent(alphabet.covered_share()) +
                              " of the text); the others are spelled in bytes");
  }

  sp::NormalizerSpec normalizer;
  normalizer.set_name("identity");
  normalizer.set_add_dummy_prefix(false);
  normalizer.set_remove_extra_whitespaces(false);
  // The unigram trainer drops pieces that it expects less than 0.5 times, and aborts the process
  // when none is left, as happens with a few words of text. Repetition keeps all ratios as they
  // are.
  const bool repeat = options.model == TokenizerModel::kUnigram && corpus.lines.size() < kFewLines;
  LineIterator iterator(corpus.lines, alphabet,
                        repeat ? (kFewLines + corpus.lines.size() - 1) / corpus.lines.size() : 1);
  const auto status = sp::SentencePieceTrainer::Train(trainer_spec(options), normalizer, &iterator,
                                                      &result.model_bytes);
  if (!status.ok()) {
    refuse("text: the tokenizer cannot be trained on it: " + io::escaped(status.error_message()));
  }
  const Tokenizer trained = Tokenizer::from_bytes(result.model_bytes);
  if (!trained.info().lossless) {
    throw Error(ErrorCode::kInternal, "tokenizer: the trained model is not lossless");
  }
  if (trained.vocab_size() < options.vocab_size) {
    result.warnings.push_back("the text fills a vocabulary of " +
                              std::to_string(trained.vocab_size()) + ", not " +
                              std::to_string(options.vocab_size));
  }
  return result;
}

}  // namespace kda::text
