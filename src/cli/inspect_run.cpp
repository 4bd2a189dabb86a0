#include "cli/inspect_run.h"

#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/build_info.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "inspect/kda_stages.h"
#include "inspect/select.h"
#include "io/atomic_file.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "train/named_errors.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

std::vector<std::int64_t> ids_from(const std::string& text, std::int64_t vocab_size) {
  std::vector<std::int64_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    ids.push_back(parse_whole(text.substr(begin, end - begin), "--ids", {0, vocab_size - 1}));
    begin = end + 1;
  }
  return ids;
}

std::string text_from(const InspectOptions& options) {
  std::string text = options.text;
  if (!options.prompt_file.empty()) {
    text = train::named("--prompt-file", [&] { return io::read_file(options.prompt_file); });
    if (!text.empty() && text.back() == '\n') text.pop_back();  // the editor's, not the author's
  }
  const std::string flag = options.has_text ? "--text" : "--prompt-file";
  if (const auto bad = io::find_invalid_utf8(text); bad != text.size()) {
    throw Error(ErrorCode::kInvalidArgument, flag + ": expected UTF-8, byte " +
                                                 std::to_string(bad + 1) + " of " +
                                                 std::to_string(text.size()) + " is not");
  }
  if (text.empty()) throw Error(ErrorCode::kInvalidArgument, flag + ": expected a text, got none");
  return text;
}

std::vector<std::string> pieces_of(const text::Tokenizer& tokenizer) {
  std::vector<std::string> pieces;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    pieces.push_back(tokenizer.piece(id));
  return pieces;
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

[[noreturn]] void no_operator(const inspect::Graph& graph, const std::string& word) {
  std::string known;
  for (const inspect::Node& node : graph.nodes)
    if (node.function == "chunk_kda" && known.size() < 100) known += " " + node.label;
  throw Error(ErrorCode::kInvalidArgument,
              "--open: '" + word +
                  "' names no KDA operator; there are:" + (known.empty() ? " none" : known));
}

}  // namespace

void InspectRun::add_tokens(const std::vector<std::int64_t>& all) {
  for (std::size_t i = tokens.size(); i < all.size(); ++i) {
    const auto id = static_cast<std::size_t>(all[i]);
    tokens.push_back(
        {{"id", all[i]}, {"text", id < pieces.size() ? io::Json(pieces[id]) : io::Json(nullptr)}});
  }
}

std::string InspectRun::text() const {
  const auto value = [&](const char* key) { return run[key].get<std::string>(); };
  std::string out =
      folder.string() + ": " + train::short_count(static_cast<double>(model.num_parameters())) +
      " parameters, " + value("dtype") + " on " + device + ", operator backend " +
      value("backend") + ", " + counted(run["threads"].get<std::size_t>(), "thread") + "\n";
  out += counted(tokens.size(), "token") + ":";
  constexpr std::size_t kShown = 16;
  for (std::size_t i = 0; i < std::min(tokens.size(), kShown); ++i) {
    const io::Json& text = tokens[i]["text"];
    out += " " + (text.is_null() ? std::to_string(tokens[i]["id"].get<std::int64_t>())
                                 : text.get<std::string>());
  }
  return out + (tokens.size() > kShown ? " ...\n" : "\n");
}

void add_inspect_options(CLI::App* verb, InspectOptions& options) {
  verb->add_option("--ckpt", options.load.checkpoint,
                   "Run folder, checkpoint folder, RUN/best, RUN/last or downloaded model folder")
      ->type_name("PATH")
      ->required();
  verb->add_option_function<std::string>(
          "--text,--prompt",
          [&options](const std::string& text) {
            options.text = text;
            options.has_text = true;
          },
          "Text of one sequence")
      ->type_name("TEXT");
  verb->add_option("--prompt-file", options.prompt_file, "File with the text")->type_name("FILE");
  verb->add_option("--ids", options.ids, "Token ids instead of a text, with commas")
      ->type_name("IDS");
  add_whole(verb, "--decode", options.how.decode, {0, 1 << 20},
            "Take the text as a prompt and add so many greedy tokens, one step each; 0 = one pass "
            "over the text");
  verb->add_flag("--backward", options.how.backward,
                 "Also the gradients of predicting each next token");
  verb->add_option("--open", options.open,
                   "KDA operators to open to their stages: labels, module paths, globs, or all")
      ->type_name("LIST");
  add_model_options(verb, options.load);
}

InspectRun open_for_inspection(const InspectOptions& options, const std::string& verb) {
  const int ways = (options.has_text ? 1 : 0) + (options.prompt_file.empty() ? 0 : 1) +
                   (options.ids.empty() ? 0 : 1);
  if (ways != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(ways == 0 ? "no text: give" : "several texts: give one of") +
                    " --text, --prompt-file or --ids");
  }
  std::string device;
  std::optional<InspectRun> out;
  if (!options.ids.empty() && options.load.tokenizer.empty()) {
    ModelAlone alone = load_model_alone(options.load, verb);
    device = alone.device;
    out = InspectRun{alone.folder, std::move(alone.model), {}, {}, io::Json::array(), {}};
    const fs::path own = out->folder / "tokenizer.model";
    if (fs::exists(own)) out->pieces = pieces_of(text::Tokenizer::load(own));
    out->ids = ids_from(options.ids, out->model.config().vocab_size);
  } else {
    LoadedModel loaded = load_for_use(options.load, verb);
    device = loaded.device;
    out = InspectRun{loaded.folder,     std::move(loaded.model),    {}, {},
                     io::Json::array(), pieces_of(loaded.tokenizer)};
    if (options.ids.empty()) {
      const std::vector<std::int32_t> ids = loaded.tokenizer.encode(text_from(options));
      out->ids.assign(ids.begin(), ids.end());
    } else {
      out->ids = ids_from(options.ids, out->model.config().vocab_size);
    }
  }
  out->add_tokens(out->ids);
  out->device = device;
  out->run = {{"program", std::string("kda ") + kVersion + " (" + kCommit + ")"},
              {"checkpoint", out->folder.string()},
              {"device", device.substr(0, device.find(' '))},
              {"dtype", name_of(out->model.compute())},
              {"backend", options.load.backend},
              {"threads", binding::num_threads()}};
  return std::move(*out);
}

void open_operators(inspect::Graph& graph, const std::string& list) {
  if (list.empty()) return;
  std::set<std::int64_t> wanted;
  const auto is_operator = [&](std::int64_t i) {
    return graph.nodes[static_cast<std::size_t>(i)].function == "chunk_kda";
  };
  const auto count = static_cast<std::int64_t>(graph.nodes.size());
  const auto chosen_by = [&](const std::string& word) -> std::vector<inspect::Selection> {
    try {
      return inspect::select(graph, word);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      return {};  // its nearest names are of anything; below only operators are named
    }
  };
  for (const std::string& word : train::named("--open", [&] { return inspect::words_of(list); })) {
    bool found = false;
    const auto chosen = word == "all" ? std::vector<inspect::Selection>{} : chosen_by(word);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!is_operator(i)) continue;
      const std::string& module = graph.nodes[static_cast<std::size_t>(i)].module;
      bool named = word == "all";
      for (const inspect::Selection& item : chosen) {
        named = named || item.node == i ||
                (item.kind == inspect::Selection::Kind::kModule &&
                 (module == item.name || module.starts_with(item.name + ".")));
      }
      if (named) wanted.insert(i);
      found = found || named;
    }
    if (!found) no_operator(graph, word);
  }
  for (const std::int64_t node : wanted)
    inspect::open_operator(graph, node);
}

}  // namespace kda::cli
