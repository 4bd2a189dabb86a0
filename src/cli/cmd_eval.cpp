#include "cli/cmd_eval.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/model_loading.h"
#include "cli/number_option.h"
#include "eval/perplexity.h"
#include "io/json.h"
#include "kda/error.h"
#include "train/dataset.h"
#include "train/named_errors.h"
#include "train/options.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

struct PplCommand {
  LoadModelOptions load;
  std::string text;
  std::string cache;
  std::int64_t batch = 4;
  std::int64_t seq_len = 512;
  train::Count max_tokens;
  bool json = false;
};

int run_ppl(const PplCommand& command) {
  const train::SignalScope signals;
  const LoadedModel loaded = load_for_use(command.load, "eval ppl");
  const fs::path text = command.text;
  train::DataFiles files = train::find_data(text, "--text");
  // Of a corpus folder the held-out part is meant; of a file, the file.
  const bool heldout = !files.heldout.empty() || !files.packed.empty();
  if (!files.heldout.empty()) files.train = files.heldout;
  files.heldout.clear();
  fs::path cache = command.cache;
  if (cache.empty()) cache = (fs::is_directory(text) ? text : text.parent_path()) / "cache";
  ConsoleReporter console("eval ppl");
  train::Reporter silent;  // standard output is for the JSON alone
  train::Reporter& reporter = command.json ? silent : console;
  const train::PreparedData data = train::named("--text", [&] {
    return train::prepare_data(files, {cache, 0.0}, loaded.tokenizer, reporter);
  });
  const auto& documents = files.packed.empty() ? data.train : data.heldout;
  if (!documents) {
    throw Error(ErrorCode::kIo, "--text: " + command.text + " has no held-out part");
  }
  eval::PerplexityOptions options;
  options.batch = command.batch;
  options.seq_len = command.seq_len;
  options.max_tokens = command.max_tokens.value;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const eval::Perplexity result =
      eval::measure_perplexity(loaded.model, documents, loaded.tokenizer, options,
                               [&](std::int64_t done, std::int64_t wanted) {
                                 train::poll_stop();
                                 reporter.progress({"evaluating", static_cast<double>(done),
                                                    static_cast<double>(wanted), seconds(), false});
                               });
  const double took = seconds();
  if (command.json) {
    const io::Json json = {{"checkpoint", loaded.folder.string()},
                           {"text", command.text},
                           {"loss", result.loss},
                           {"perplexity", result.perplexity()},
                           {"bits_per_byte", result.bits_per_byte},
                           {"targets", result.tokens},
                           {"bytes", result.bytes},
                           {"available_targets", result.available},
                           {"seconds", took}};
    std::printf("%s\n", json.dump().c_str());
    return kDone;
  }
  std::printf("%s on %s%s\n", loaded.folder.c_str(), command.text.c_str(),
              heldout ? " (held-out part)" : "");
  std::printf("cross entropy %.4f nats per token | perplexity %.2f | %.4f bits per byte\n",
              result.loss, result.perplexity(), result.bits_per_byte);
  const std::string part =
      result.tokens == result.available ? "" : " of " + std::to_string(result.available);
  std::printf("%lld%s predicted tokens (EOS included), %s of text, %s tok/s on %s\n",
              static_cast<long long>(result.tokens), part.c_str(),
              train::short_bytes(static_cast<double>(result.bytes)).c_str(),
              train::short_count(static_cast<double>(result.tokens) / took).c_str(),
              loaded.device.c_str());
  return kDone;
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval = add_verb(app, "eval", "Measure a model: ppl (language), mt (translation)");
  eval->require_subcommand(1);
  CLI::App* ppl =
      add_verb(*eval, "ppl", "Cross entropy, perplexity and bits per byte of a text",
               "  kda eval ppl --ckpt runs/first --text data/tiny   # its held-out file\n"
               "  kda eval ppl --ckpt runs/first/best --text notes.txt --json");
  auto command = std::make_shared<PplCommand>();
  ppl->add_option("--ckpt", command->load.checkpoint,
                  "Run folder, checkpoint folder, RUN/best or RUN/last")
      ->type_name("PATH")
      ->required();
  ppl->add_option("--text", command->text, "Text or JSONL file, corpus folder or packed folder")
      ->type_name("PATH")
      ->required();
  add_whole(ppl, "--batch", command->batch, {1, 1 << 20}, "Rows per batch");
  add_whole(ppl, "--seq-len", command->seq_len, {1, 1 << 24},
            "Tokens per row; a longer document goes on in the next row without its past");
  ppl->add_option_function<std::string>(
         "--max-tokens",
         [command](const std::string& text) {
           train::parse_text(text, "--max-tokens", command->max_tokens);
         },
         "Predicted tokens, exactly, evenly spaced over the text; default: all")
      ->type_name("COUNT");
  ppl->add_option("--cache", command->cache, "Folder for token shards; default: beside the text")
      ->type_name("DIR");
  add_model_options(ppl, command->load);
  ppl->add_flag("--json", command->json, "One JSON object on standard output");
  on_run(ppl, [command] { return run_ppl(*command); });
  add_eval_mt(*eval);
}

}  // namespace kda::cli
