#include "train/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "io/config_reader.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "kda/error.h"
#include "model/config.h"
#include "model/weights.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kTokenizerFile = "tokenizer.model";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kTrainerFile = "trainer.json";
constexpr const char* kRngName = "rng.torch_cpu";
constexpr std::string_view kGradientPrefix = "grad.";

std::span<const std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

io::StSpec spec_of(std::string name, const at::Tensor& t) {
  return {std::move(name), t.scalar_type() == at::kByte ? io::StDtype::kU8 : io::StDtype::kF32,
          t.sizes().vec()};
}

/// The tensors of optimizer.safetensors, in file order.
std::vector<std::pair<std::string, at::Tensor>> optimizer_tensors(const Optimizer& optimizer,
                                                                  bool open_window) {
  auto list = optimizer.state();
  if (open_window) {
    for (const model::Parameter& p : optimizer.parameters()) {
      if (p.tensor.grad().defined()) {
        list.emplace_back(std::string(kGradientPrefix) + p.name, p.tensor.grad().contiguous());
      }
    }
  }
  list.emplace_back(kRngName, at::globalContext().defaultGenerator(at::kCPU).get_state());
  return list;
}

void write_optimizer(const fs::path& path, const Optimizer& optimizer, bool open_window) {
  const auto tensors = optimizer_tensors(optimizer, open_window);
  std::vector<io::StSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back(spec_of(name, tensor));
  io::SafetensorsWriter writer(path, std::move(specs),
                               {{"updates", std::to_string(optimizer.updates())}});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    writer.write_tensor(name, bytes_of(host));
  }
  writer.commit();
}

[[noreturn]] void fail_checkpoint(const std::string& text) { throw Error(ErrorCode::kIo, text); }

void copy_into(at::Tensor target, const io::SafetensorsFile& file, const std::string& name) {
  const io::StTensor& source = file.info(name);
  const bool is_bytes = target.scalar_type() == at::kByte;
  if (source.dtype != (is_bytes ? io::StDtype::kU8 : io::StDtype::kF32) ||
      source.shape != target.sizes().vec()) {
    fail_checkpoint(file.what() + ": " + name + ": dtype or shape differs from the model's");
  }
  at::Tensor host = target.is_cpu() ? target : at::empty(target.sizes(), target.scalar_type());
  std::memcpy(host.mutable_data_ptr(), source.data.data(), source.data.size());
  if (!target.is_cpu()) target.copy_(host);
}

}  // namespace

std::string first_nonfinite_parameter(const std::vector<model::Parameter>& parameters) {
  if (parameters.empty()) return {};
  std::vector<at::Tensor> verdicts;
  for (const model::Parameter& p : parameters)
    verdicts.push_back(at::isfinite(p.tensor.detach()).all());
  const at::Tensor all = at::stack(verdicts).to(at::kCPU).contiguous();  // one wait for a GPU
  const bool* finite = all.const_data_ptr<bool>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!finite[i]) return parameters[i].name;
  }
  return {};
}

std::int64_t estimated_checkpoint_bytes(std::int64_t num_parameters, bool open_window) {
  return num_parameters * 4 * (open_window ? 4 : 3);
}

std::int64_t save_checkpoint(const fs::path& run, const model::CausalLM& model,
                             const Optimizer& optimizer, const text::Tokenizer& tokenizer,
                             const TrainerFile& file) {
  if (const std::string bad = first_nonfinite_parameter(optimizer.parameters()); !bad.empty()) {
    throw Error(ErrorCode::kNonFinite,
                "weights: " + bad + " is not finite after step " + std::to_string(file.state.step));
  }
  io::Json trainer = {
      {"format", "kda-trainer"},
      {"version", 1},
      {"tokenizer_sha256", file.tokenizer_sha256},
      {"vocab_size", file.vocab_size},
      {"dataset", file.dataset},
      {"world_size", file.world_size},
      {"options", io::parse_json(options_to_json(file.options), "options")},
      {"state", to_json(file.state)},
  };
  if (file.prompt_version > 0) trainer["prompt_version"] = file.prompt_version;
  io::Json info = {{"step", file.state.step},       {"micro", file.state.window.micro},
                   {"tokens", file.state.tokens},   {"parameters", model.num_parameters()},
                   {"vocab_size", file.vocab_size}, {"tokenizer_sha256", file.tokenizer_sha256}};
  if (file.state.has_best) {
    info["best"] = {{"step", file.state.best_step}, {"heldout_loss", file.state.best_loss}};
    if (file.state.best_success) info["best"]["success_rate"] = *file.state.best_success;
  }
  return commit_checkpoint(run, file.state.point(), info, [&](const fs::path& folder) {
    model::save_weights(model, (folder / kModelFile).string());
    model::save_config(model.config(), (folder / kConfigFile).string());
    write_optimizer(folder / kOptimizerFile, optimizer, file.state.window.micro > 0);
    io::write_file_atomic(folder / kTokenizerFile, tokenizer.model_bytes());
    io::write_json_file(folder / kTrainerFile, trainer);
    return std::vector<std::string>{kModelFile, kConfigFile, kOptimizerFile, kTokenizerFile,
                                    kTrainerFile};
  });
}

TrainerFile read_trainer_file(const fs::path& folder) {
  const fs::path path = folder / kTrainerFile;
  const io::Json json = io::read_json_file(path);
  TrainerFile file;
  try {
    io::ConfigReader reader(json, "");
    if (const std::string format = reader.require_string("format"); format != "kda-trainer") {
      fail_checkpoint("format: expected kda-trainer, got " + format);
    }
    if (const std::int64_t version = reader.require_int("version"); version != 1) {
      fail_checkpoint("version: this program reads version 1, the file has " +
                      std::to_string(version));
    }
    file.tokenizer_sha256 = reader.require_string("tokenizer_sha256");
    file.vocab_size = reader.require_int("vocab_size", 1);
    file.dataset = reader.require_string("dataset");
    reader.read_int("world_size", file.world_size, 1);
    reader.read_int("prompt_version", file.prompt_version, 0);
    const io::Json* options = reader.raw("options");
    const io::Json* state = reader.raw("state");
    if (options == nullptr || state == nullptr) fail_checkpoint("options or state is missing");
    file.options = options_from_json(options->dump(), "options");
    file.state = state_from_json(*state, "state");
    reader.finish();
  } catch (const Error& error) {
    fail_checkpoint(path.string() + ": " + error.what());
  }
  return file;
}

void restore_tensors(const fs::path& folder, const TrainerFile& file, model::CausalLM& model,
                     Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  model::load_weights(model, (folder / kModelFile).string());
  const io::SafetensorsFile saved = io::SafetensorsFile::open(folder / kOptimizerFile);
  std::size_t expected = 1;  // the RNG state
  for (auto& [name, tensor] : optimizer.state()) {
    copy_into(tensor, saved, name);
    ++expected;
  }
  optimizer.clear_gradients();
  for (const model::Parameter& p : optimizer.parameters()) {
    const std::string name = std::string(kGradientPrefix) + p.name;
    if (!saved.contains(name)) continue;
    at::Tensor grad = at::empty_like(p.tensor.detach());
    copy_into(grad, saved, name);
    p.tensor.mutable_grad() = grad;
    ++expected;
  }
  if (saved.names().size() != expected) {
    fail_checkpoint(saved.what() + ": expected " + std::to_string(expected) + " tensors, got " +
                    std::to_string(saved.names().size()));
  }
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  at::Tensor rng = at::empty_like(generator.get_state());
  copy_into(rng, saved, kRngName);
  generator.set_state(rng);
  optimizer.set_updates(file.state.updates);
}

}  // namespace kda::train
