#include "eval/text_session.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "io/atomic_file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "text/prompts.h"

namespace kda::eval {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "kda-session";
constexpr int kVersion = 1;
constexpr const char* kFile = "session.json";
constexpr const char* kStatePrefix = "state-";
constexpr const char* kStateSuffix = ".safetensors";

[[noreturn]] void damaged(const fs::path& folder, const std::string& why) {
  throw Error(ErrorCode::kIo, "session " + folder.string() + ": " + why);
}

/// Number of the state file that a session.json names; 0 for none.
std::uint64_t number_of(const std::string& name) {
  std::uint64_t number = 0;
  const std::string_view digits =
      std::string_view(name).substr(std::min(name.size(), std::string_view(kStatePrefix).size()));
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string state_name(std::uint64_t number) {
  return kStatePrefix + std::to_string(number) + kStateSuffix;
}

bool is_state_name(const std::string& name) { return name == state_name(number_of(name)); }

constexpr const char* kNothing =
    "prompt: expected some text (the tokenizer has no BOS to start from), got none";

model::GenerateOptions generate_options(const text::Tokenizer& tokenizer,
                                        const ContinueOptions& options) {
  model::GenerateOptions how;
  how.sampling = options.sampling;
  how.max_new_tokens = options.max_new_tokens;
  how.prefill_piece = options.prefill_piece;
  how.first_row = options.row;
  how.stop_ids.assign(options.stop_ids.begin(), options.stop_ids.end());
  if (options.stop_ids.empty() && options.stop_at_eos && tokenizer.eos_id() >= 0) {
    how.stop_ids.push_back(tokenizer.eos_id());
  }
  return how;
}

/// A decoder drops the space that a tokenizer puts before a text's first word; what goes before a
/// continuation therefore passes through the same decoder.
class Decoder {
 public:
  explicit Decoder(const text::Tokenizer& tokenizer)
      : vocab_size_(tokenizer.vocab_size()), decoder_(tokenizer) {}

  std::string add(std::int64_t id) {
    // A vocabulary padded beyond the tokenizer's has ids without text.
    return id < vocab_size_ ? decoder_.add(static_cast<std::int32_t>(id)) : std::string();
  }
  std::string finish() { return decoder_.finish(); }

 private:
  std::int32_t vocab_size_;
  text::StreamDecoder decoder_;
};

}  // namespace

std::vector<Continuation> continue_texts(const model::CausalLM& model,
                                         const text::Tokenizer& tokenizer,
                                         const std::vector<std::string>& prompts,
                                         const ContinueOptions& options,
                                         const std::function<void()>& on_token) {
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t> ids = text::encode_prompt(tokenizer, prompts[i]);
    if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, kNothing);
    rows.emplace_back(ids.begin(), ids.end());
  }
  if (rows.empty()) return {};
  const model::GenerateOptions how = generate_options(tokenizer, options);
  const std::vector<model::GeneratedRow> made =
      model::generate(model, rows, how, [&](std::int64_t, std::int64_t) {
        if (on_token) on_token();
        return true;
      });
  std::vector<Continuation> results;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Decoder decoder(tokenizer);
    for (const std::int64_t id : rows[i])
      decoder.add(id);
    Continuation& result = results.emplace_back();
    for (const std::int64_t id : made[i].ids)
      result.text += decoder.add(id);
    result.text += decoder.finish();
    result.prompt_tokens = static_cast<std::int64_t>(rows[i].size());
    result.new_tokens = static_cast<std::int64_t>(made[i].ids.size());
    result.reason = made[i].reason;
  }
  return results;
}

TextSession::TextSession(const model::CausalLM& model, const text::Tokenizer& tokenizer)
    : model_(&model), tokenizer_(&tokenizer), state_(model.new_state(1)) {
  if (tokenizer.info().bos_id >= 0) ids_.push_back(tokenizer.info().bos_id);
}

std::int64_t TextSession::fed() const { return state_.lengths().front(); }

void TextSession::append(std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer_->encode(text);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

Continuation TextSession::continue_text(const ContinueOptions& options, const TextSink& sink) {
  options.sampling.validate();
  Continuation made;
  if (options.max_new_tokens == 0) return made;
  const std::vector<std::int64_t> pending(ids_.begin() + fed(), ids_.end());
  if (pending.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                ids_.empty() ? kNothing
                             : "prompt: a stop token has ended the session's text; expected more "
                               "text to go on with, got none");
  }
  model::GenerateOptions how = generate_options(*tokenizer_, options);
  how.first_draw = draws_;
  how.history = {std::vector<std::int64_t>(ids_.begin(), ids_.begin() + fed())};
  Decoder decoder(*tokenizer_);
  for (const std::int64_t id : ids_)
    decoder.add(id);
  bool wanted = true;
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    made.text += text;
    if (sink) wanted = sink(text) && wanted;
  };
  made.prompt_tokens = static_cast<std::int64_t>(pending.size());
  const std::vector<model::GeneratedRow> rows =
      model::generate(*model_, state_, {pending}, how, [&](std::int64_t, std::int64_t id) {
        ++made.new_tokens;
        const std::string text = decoder.add(id);
        // Also without text: whoever wants to stop is asked at every token.
        if (text.empty() && sink) wanted = sink({}) && wanted;
        emit(text);
        return wanted;
      });
  emit(decoder.finish());
  made.reason = rows.front().reason;
  const std::vector<std::int64_t>& ids = rows.front().ids;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  draws_ += ids.size() + (made.reason == model::FinishReason::kStop ? 1U : 0U);
  return made;
}

std::string TextSession::text() const {
  std::vector<std::int32_t> known;
  for (const std::int64_t id : ids_) {
    if (id < tokenizer_->vocab_size()) known.push_back(static_cast<std::int32_t>(id));
  }
  return tokenizer_->decode(known);
}

void TextSession::save(const fs::path& folder) const {
  std::uint64_t number = 1;
  std::error_code status;
  if (fs::exists(folder / kFile)) {
    const io::Json old = io::read_json_file(folder / kFile);
    number = number_of(old.value("state", std::string())) + 1;
  } else if (fs::exists(folder) && !fs::is_empty(folder, status)) {
    throw Error(ErrorCode::kInvalidArgument,
                "session: expected a new or empty folder or one that holds a session, got " +
                    folder.string());
  }
  fs::create_directories(folder, status);
  if (!fs::is_directory(folder)) damaged(folder, "cannot make the folder: " + status.message());
  const std::string name = state_name(number);
  state_.save((folder / name).string(), *model_);
  // The names of the state files differ, so session.json belongs to one of them at any moment.
  const io::Json json = {{"format", kFormat},
                         {"version", kVersion},
                         {"tokenizer_sha256", io::to_hex(tokenizer_->info().sha256)},
                         {"state", name},
                         {"draws", draws_},
                         {"ids", ids_}};
  io::write_file_atomic(folder / kFile, json.dump() + "\n");
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string other = entry.path().filename().string();
    if (other != name && is_state_name(other)) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale)
    fs::remove(path, status);
}

TextSession TextSession::load(const fs::path& folder, const model::CausalLM& model,
                              const text::Tokenizer& tokenizer) {
  TextSession session(model, tokenizer);
  const io::Json json = io::read_json_file(folder / kFile);
  std::string state;
  std::string tokenizer_sha256;
  try {
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      damaged(folder, "expected format kda-session version 1");
    }
    state = json.at("state").get<std::string>();
    tokenizer_sha256 = json.at("tokenizer_sha256").get<std::string>();
    const io::Json& draws = json.at("draws");
    const io::Json& ids = json.at("ids");
    // The library would round and wrap numbers of other kinds.
    if (!draws.is_number_unsigned() || !ids.is_array() ||
        !std::all_of(ids.begin(), ids.end(),
                     [](const io::Json& id) { return id.is_number_integer(); })) {
      damaged(folder, "session.json: expected whole numbers in draws and ids");
    }
    session.draws_ = draws.get<std::uint64_t>();
    session.ids_ = ids.get<std::vector<std::int64_t>>();
  } catch (const io::Json::exception&) {
    damaged(folder, "session.json: expected format, version, state, tokenizer_sha256, draws, ids");
  }
  const std::string own = io::to_hex(tokenizer.info().sha256);
  if (tokenizer_sha256 != own) {
    throw Error(ErrorCode::kInvalidArgument,
                "session " + folder.string() + ": belongs to another tokenizer (sha256 " +
                    tokenizer_sha256.substr(0, 16) + ", this one has " + own.substr(0, 16) + ")");
  }
  if (!is_state_name(state)) damaged(folder, "session.json names no state file");
  for (const std::int64_t id : session.ids_) {
    if (id < 0 || id >= model.config().vocab_size) {
      damaged(folder, "ids: expected values in [0," + std::to_string(model.config().vocab_size) +
                          "), got " + std::to_string(id));
    }
  }
  session.state_ = model::DecodeState::load((folder / state).string(), model);
  if (session.state_.num_rows() != 1 ||
      session.fed() > static_cast<std::int64_t>(session.ids_.size())) {
    damaged(folder, "its decode state is not of this text");
  }
  return session;
}

}  // namespace kda::eval
