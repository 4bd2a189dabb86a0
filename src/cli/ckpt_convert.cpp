#include "cli/ckpt_convert.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/model_folder.h"
#include "io/manifest.h"
#include "kda/error.h"
#include "model/hf_export.h"
#include "model/weights.h"
#include "train/run_folder.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConvertVerb = "ckpt convert";
constexpr const char* kTokenizer = "tokenizer.model";

struct ConvertCommand {
  std::string source;
  std::string target;
  std::string form = "hf";
  std::string dtype = "fp32";
  std::string shard_size;
};

model::StoredType stored_type(const std::string& dtype) {
  if (dtype == "fp32") return model::StoredType::kF32;
  if (dtype == "bf16") return model::StoredType::kBF16;
  throw Error(ErrorCode::kInvalidArgument, "--dtype: expected fp32 or bf16, got '" + dtype + "'");
}

void check(const ConvertCommand& command) {
  if (command.form != "hf" && command.form != "kda") {
    throw Error(ErrorCode::kInvalidArgument,
                "--to: expected hf or kda, got '" + command.form + "'");
  }
  if (command.form == "kda" && !command.shard_size.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--shard-size: only with --to hf");
  }
  if (fs::exists(command.target) &&
      (!fs::is_directory(command.target) || !fs::is_empty(command.target))) {
    throw Error(ErrorCode::kIo, command.target + ": expected a new or empty folder");
  }
}

int run_convert(const ConvertCommand& command) {
  check(command);
  const model::StoredType type = stored_type(command.dtype);
  const std::int64_t shard_bytes =
      command.shard_size.empty() ? 0 : train::parse_count(command.shard_size, "--shard-size");
  const fs::path source = find_model_folder(command.source, kConvertVerb);
  std::vector<std::string> warnings;
  const model::CausalLM model = model::load_model(source.string(), {}, &warnings);
  for (const std::string& warning : warnings)
    print_warning(kConvertVerb, warning);
  std::vector<std::string> files;
  if (command.form == "hf") {
    files = model::export_hf(model, command.target, {type, shard_bytes});
  } else {
    model::save_model(model, command.target, {type, {}});
    files = {"model.safetensors", "config.json"};
  }
  if (fs::exists(source / kTokenizer)) {
    fs::copy_file(source / kTokenizer, fs::path(command.target) / kTokenizer);
    files.emplace_back(kTokenizer);
  }
  if (command.form == "kda") {
    // With a manifest the folder is a checkpoint: generate, eval and sft take it.
    io::Json info;
    info["converted_from"] = fs::absolute(source).lexically_normal().filename().string();
    io::write_manifest(command.target, train::kCheckpointKind, files, info);
  }
  std::printf("%s: %s parameters in %zu files\n", command.target.c_str(),
              train::short_count(static_cast<double>(model.num_parameters())).c_str(),
              files.size());
  return kDone;
}

}  // namespace

void add_ckpt_convert(CLI::App& ckpt) {
  auto command = std::make_shared<ConvertCommand>();
  CLI::App* verb = add_verb(
      ckpt, "convert", "To and from the form of released Kimi-Linear and Kimi-K3 checkpoints",
      "  kda ckpt convert runs/first/best exported --to hf --dtype bf16 --shard-size 4G\n"
      "  kda ckpt convert Kimi-Linear-48B-A3B-Base imported --to kda\n"
      "\n"
      "hf: config.json, names and layouts of the released checkpoint that can hold the model\n"
      "(Kimi-Linear without K3's parts, else Kimi-K3), experts one by one, in one file or several\n"
      "with an index. kda: a checkpoint folder for the other verbs. Reads both, MXFP4 experts "
      "too.");
  verb->add_option("source", command->source, "Checkpoint, run folder or downloaded model folder")
      ->type_name("SRC")
      ->required();
  verb->add_option("target", command->target, "New folder")->type_name("DST")->required();
  verb->add_option("--to", command->form, "hf or kda")->type_name("FORM")->capture_default_str();
  verb->add_option("--dtype", command->dtype, "Stored type of the matrices: fp32 or bf16")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--shard-size", command->shard_size,
                   "Bytes of one weight file at most, e.g. 4G; default: one file")
      ->type_name("N");
  on_run(verb, [command] { return run_convert(*command); });
}

}  // namespace kda::cli
