#include "cli/model_loading.h"

#include <utility>

#include "binding/functional.h"
#include "cli/console.h"
#include "cli/model_folder.h"
#include "cli/number_option.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "model/weights.h"
#include "train/device.h"
#include "train/named_errors.h"

namespace kda::cli {

kda::DType compute_type(const std::string& dtype) {
  if (dtype == "fp32") return kda::DType::kF32;
  if (dtype == "bf16") return kda::DType::kBF16;
  if (dtype == "fp16") {
    throw Error(ErrorCode::kUnsupported,
                "--dtype: fp16 is not supported: products of decays and the recurrent state leave "
                "its range (65504); use bf16 or fp32");
  }
  throw Error(ErrorCode::kInvalidArgument, "--dtype: expected fp32 or bf16, got '" + dtype + "'");
}

namespace {

// Ids of another tokenizer mean other text, whatever its size.
void check_same_tokenizer(const text::Tokenizer& given, const text::Tokenizer& own,
                          const std::string& path) {
  if (given.info().sha256 == own.info().sha256) return;
  const auto start = [](const text::Tokenizer& tokenizer) {
    return io::to_hex(tokenizer.info().sha256).substr(0, 16);
  };
  throw Error(ErrorCode::kInvalidArgument,
              "--tokenizer: expected the one that the model was trained with (sha256 " +
                  start(own) + ", its copy is in the checkpoint), got " + path + " (" +
                  start(given) + ")");
}

}  // namespace

void add_model_options(CLI::App* verb, LoadModelOptions& options) {
  verb->add_option("--tokenizer", options.tokenizer,
                   "Tokenizer file; default: the copy in the checkpoint")
      ->type_name("FILE");
  verb->add_option("--dtype", options.dtype, "fp32 or bf16")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--device", options.device,
                   "cpu, cuda, cuda:N, or auto: the first GPU when there is one")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--backend", options.backend, "Backend of the operator: auto, cpu, ref, cuda")
      ->type_name("TEXT")
      ->capture_default_str();
  add_whole(verb, "--threads", options.threads, kThreadRange, "CPU threads; 0 = all");
}

ModelAlone load_model_alone(const LoadModelOptions& options, const std::string& verb) {
  // First: the CUDA library must be there before any other use of torch.
  const train::DeviceChoice device = train::choose_device(options.device);
  train::check_backend(options.backend, device);
  binding::set_num_threads(options.threads);
  const std::filesystem::path folder =
      train::named("--ckpt", [&] { return find_model_folder(options.checkpoint, verb); });
  model::ModelOptions how;
  how.compute = compute_type(options.dtype);
  how.backend = options.backend;
  how.device = device.device;
  std::vector<std::string> warnings;
  model::CausalLM model = model::load_model(folder.string(), how, &warnings);
  for (const std::string& warning : warnings)
    print_warning(verb, warning);
  return {folder, std::move(model), device.text};
}

LoadedModel load_for_use(const LoadModelOptions& options, const std::string& verb) {
  ModelAlone alone = load_model_alone(options, verb);
  const std::filesystem::path own = alone.folder / "tokenizer.model";
  text::Tokenizer tokenizer =
      options.tokenizer.empty()
          ? text::Tokenizer::load(own)
          : train::named("--tokenizer", [&] { return text::Tokenizer::load(options.tokenizer); });
  if (!options.tokenizer.empty() && std::filesystem::exists(own)) {
    check_same_tokenizer(tokenizer, text::Tokenizer::load(own), options.tokenizer);
  }
  if (tokenizer.vocab_size() > alone.model.config().vocab_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "--tokenizer: it has " + std::to_string(tokenizer.vocab_size()) +
                    " pieces, the model " + std::to_string(alone.model.config().vocab_size));
  }
  return {alone.folder, std::move(alone.model), std::move(tokenizer), alone.device};
}

}  // namespace kda::cli
