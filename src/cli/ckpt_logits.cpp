#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/ckpt_convert.h"
#include "cli/console.h"
#include "cli/model_folder.h"
#include "cli/model_loading.h"
#include "cli/number_option.h"
#include "cli/table.h"
#include "io/json.h"
#include "kda/error.h"
#include "model/weights.h"
#include "train/device.h"

namespace kda::cli {
namespace {

constexpr const char* kLogitsVerb = "ckpt logits";

struct LogitsCommand {
  std::string source;
  std::string ids;
  std::string dtype = "fp32";
  std::string backend = "auto";
  std::int64_t top = 5;
  int threads = 0;
  bool json = false;
};

std::vector<std::int64_t> parse_ids(const std::string& text) {
  std::vector<std::int64_t> ids;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    ids.push_back(parse_whole(text.substr(begin, end - begin), "--ids", {}));
    begin = end + 1;
  }
  return ids;
}

// One position: ids and logits, the most probable first, or all in order of the ids.
struct Position {
  std::vector<std::int64_t> ids;
  std::vector<double> logits;
};

Position position_of(const at::Tensor& row, std::int64_t top) {
  Position out;
  const at::Tensor wide = row.to(at::kDouble).contiguous();
  if (top == 0) {
    const double* values = wide.const_data_ptr<double>();
    out.logits.assign(values, values + wide.numel());
    return out;
  }
  const auto [values, indices] = wide.topk(std::min(top, wide.numel()));
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    out.ids.push_back(indices[i].item<std::int64_t>());
    out.logits.push_back(values[i].item<double>());
  }
  return out;
}

int run_logits(const LogitsCommand& command) {
  train::check_backend(command.backend, {});
  binding::set_num_threads(command.threads);
  const std::vector<std::int64_t> ids = parse_ids(command.ids);
  model::ModelOptions how;
  how.compute = command.dtype == "fp64" ? DType::kF64 : compute_type(command.dtype);
  how.backend = command.backend;
  std::vector<std::string> warnings;
  const model::CausalLM model =
      model::load_model(find_model_folder(command.source, kLogitsVerb).string(), how, &warnings);
  for (const std::string& warning : warnings)
    print_warning(kLogitsVerb, warning);
  const at::Tensor logits = model.logits(model::pack({ids}));
  Table table({">position", ">id", "most probable next: id (logit)"});
  io::Json json;
  json["ids"] = ids;
  json["positions"] = io::Json::array();
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const Position position = position_of(logits[static_cast<std::int64_t>(t)], command.top);
    if (command.json) {
      io::Json entry;
      if (command.top > 0) entry["ids"] = position.ids;
      entry["logits"] = position.logits;
      json["positions"].push_back(std::move(entry));
      continue;
    }
    std::string text;
    for (std::size_t i = 0; i < position.logits.size(); ++i) {
      char part[64];
      const auto id = position.ids.empty() ? static_cast<std::int64_t>(i) : position.ids[i];
      std::snprintf(part, sizeof part, "%s%lld (%.5g)", i > 0 ? "  " : "",
                    static_cast<long long>(id), position.logits[i]);
      text += part;
    }
    table.add({std::to_string(t), std::to_string(ids[t]), text});
  }
  std::printf("%s", command.json ? (json.dump() + "\n").c_str() : table.text().c_str());
  return kDone;
}

}  // namespace

void add_ckpt_logits(CLI::App& ckpt) {
  auto command = std::make_shared<LogitsCommand>();
  CLI::App* verb = add_verb(
      ckpt, "logits", "Logits of a model for given token ids, to compare with another program",
      "  kda ckpt logits runs/first --ids 1,17,403\n"
      "  kda ckpt logits exported --ids 1,17,403 --dtype fp64 --top 0 --json > logits.json");
  verb->add_option("model", command->source, "Checkpoint, run folder or downloaded model folder")
      ->type_name("PATH")
      ->required();
  verb->add_option("--ids", command->ids, "Token ids of one sequence, with commas")
      ->type_name("IDS")
      ->required();
  add_whole(verb, "--top", command->top, {}, "Most probable next tokens of each position; 0 = all");
  verb->add_flag("--json", command->json, "One JSON object, all digits");
  verb->add_option("--dtype", command->dtype, "fp32, bf16 or fp64")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--backend", command->backend, "Backend of the operator: auto, cpu, ref")
      ->type_name("TEXT")
      ->capture_default_str();
  add_whole(verb, "--threads", command->threads, kThreadRange, "CPU threads; 0 = all");
  on_run(verb, [command] { return run_logits(*command); });
}

}  // namespace kda::cli
