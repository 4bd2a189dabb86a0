#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/ckpt_convert.h"
#include "cli/console.h"
#include "cli/table.h"
#include "io/escape.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "model/config.h"
#include "model/cost.h"
#include "model/weights.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string fixed4(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

int run_ls(const std::string& run) {
  if (!fs::is_directory(run)) throw Error(ErrorCode::kIo, "no such run folder: " + run);
  const auto list = train::list_checkpoints(run, true);
  if (list.empty()) throw Error(ErrorCode::kIo, "no checkpoint in " + run);
  const auto best = train::read_best(run);
  Table table({"checkpoint", ">step", ">tokens", ">size", "state"});
  bool last_found = false;
  int broken = 0;
  for (const train::CheckpointFolder& folder : list) {
    std::string state;
    std::string tokens = "?";
    std::uint64_t bytes = 0;
    if (folder.faults.empty()) {
      const io::Manifest manifest = io::read_manifest(folder.path);
      for (const io::ManifestEntry& entry : manifest.files)
        bytes += entry.bytes;
      tokens = train::short_count(manifest.info.value("tokens", 0.0));
      state = last_found ? "" : "last";
      last_found = true;
      if (best && folder.point == train::RunPoint{best->step, 0}) {
        state += (state.empty() ? "best" : ", best") + std::string(" (held-out ") +
                 fixed4(best->heldout_loss) + ")";
      }
    } else {
      state = "BROKEN: " + folder.faults.front();
      ++broken;
    }
    table.add({folder.path.filename().string(), std::to_string(folder.point.step), tokens,
               bytes > 0 ? train::short_bytes(static_cast<double>(bytes)) : "?", state});
  }
  std::printf("%s", table.text().c_str());
  return broken == 0 ? kDone : kFailed;
}

/// Value of one element of an f32 or bf16 tensor.
double element(const io::StTensor& tensor, std::size_t i) {
  if (tensor.dtype == io::StDtype::kF32) {
    float value = 0;
    std::memcpy(&value, tensor.data.data() + i * 4, 4);
    return static_cast<double>(value);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, tensor.data.data() + i * 2, 2);
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return static_cast<double>(value);
}

struct TensorSummary {
  double rms = 0;
  double low = 0;
  double high = 0;
  std::int64_t nonfinite = 0;
};

TensorSummary summary_of(const io::StTensor& tensor) {
  TensorSummary s;
  double squares = 0;
  std::int64_t finite = 0;
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  for (std::size_t i = 0; i < count; ++i) {
    const double x = element(tensor, i);
    if (!std::isfinite(x)) {
      ++s.nonfinite;
      continue;
    }
    if (finite == 0 || x < s.low) s.low = x;
    if (finite == 0 || x > s.high) s.high = x;
    squares += x * x;
    ++finite;
  }
  if (finite > 0) s.rms = std::sqrt(squares / static_cast<double>(finite));
  return s;
}

bool is_float(io::StDtype dtype) {
  return dtype == io::StDtype::kF32 || dtype == io::StDtype::kBF16;
}

/// Prints the tensors of a file and returns how many hold NaN or infinity.
int print_tensors(const io::SafetensorsFile& file) {
  Table table({"tensor", "dtype", "shape", ">rms", ">min", ">max"});
  int bad = 0;
  for (const std::string& name : file.names()) {
    const io::StTensor& tensor = file.info(name);
    std::string shape = "[";
    for (std::int64_t extent : tensor.shape) {
      if (shape.size() > 1) shape += 'x';
      shape += std::to_string(extent);
    }
    shape += ']';
    std::vector<std::string> row{io::escaped(name), std::string(io::name_of(tensor.dtype)), shape};
    row[0] = row[0].substr(1, row[0].size() - 2);
    if (is_float(tensor.dtype)) {
      const TensorSummary s = summary_of(tensor);
      row.push_back(number(s.rms));
      row.push_back(number(s.low));
      row.push_back(number(s.high));
      if (s.nonfinite > 0) {
        row.back() += "  NaN or infinite: " + std::to_string(s.nonfinite);
        ++bad;
      }
    }
    table.add(std::move(row));
  }
  std::printf("%s", table.text().c_str());
  return bad;
}

int run_inspect(const std::string& name, bool tensors) {
  if (fs::path(name).extension() == ".safetensors") {
    const io::SafetensorsFile file = io::SafetensorsFile::open(name);
    for (const auto& [key, value] : file.metadata()) {
      std::printf("%s = %s\n", io::escaped(key).c_str(), io::escaped(value).c_str());
    }
    return print_tensors(file) == 0 ? kDone : kFailed;
  }
  const train::CheckpointFolder checkpoint =
      train::resolve_checkpoint(name, [](const train::CheckpointFolder& broken) {
        print_warning("ckpt inspect",
                      broken.path.string() + " is broken: " + broken.faults.front());
      });
  const model::KDAConfig config = model::load_config((checkpoint.path / "config.json").string());
  const model::ParameterCount parameters = model::count_parameters(config);
  std::printf("checkpoint  %s\n", checkpoint.path.c_str());
  std::printf("model       %s parameters: embedding %s, attention %s, feed-forward %s, norms %s\n",
              train::short_count(static_cast<double>(parameters.total())).c_str(),
              train::short_count(static_cast<double>(parameters.embedding)).c_str(),
              train::short_count(static_cast<double>(parameters.attention)).c_str(),
              train::short_count(static_cast<double>(parameters.feed_forward)).c_str(),
              train::short_count(static_cast<double>(parameters.norms)).c_str());
  if (fs::exists(checkpoint.path / "trainer.json")) {
    const train::TrainerFile file = train::read_trainer_file(checkpoint.path);
    const train::TrainerState& s = file.state;
    std::printf(
        "run         step %lld, %s tokens read, in pass %llu over the data, loss %.4f (smoothed)",
        static_cast<long long>(s.step), train::short_count(static_cast<double>(s.tokens)).c_str(),
        static_cast<unsigned long long>(s.cursor.epoch + 1), s.loss_stats.ema());
    if (s.window.micro > 0)
      std::printf(", inside a step: %lld micro-batches done",
                  static_cast<long long>(s.window.micro));
    if (s.skipped > 0) std::printf(", %lld steps skipped", static_cast<long long>(s.skipped));
    std::printf("\n");
    if (s.has_best) {
      std::printf("best        held-out loss %.4f at step %lld\n", s.best_loss,
                  static_cast<long long>(s.best_step));
    }
    std::printf("tokenizer   %s, vocabulary %lld\n", file.tokenizer_sha256.substr(0, 16).c_str(),
                static_cast<long long>(file.vocab_size));
    std::printf("data        %s\n", file.dataset.substr(0, 16).c_str());
    std::printf("options\n%s", train::describe_options(file.options).c_str());
  }
  std::printf("config      %s\n", config.to_json().c_str());
  if (!tensors) return kDone;
  return print_tensors(io::SafetensorsFile::open(checkpoint.path / "model.safetensors")) == 0
             ? kDone
             : kFailed;
}

/// All that can be wrong with one checkpoint; prints it.
bool verify_one(const fs::path& folder) {
  std::vector<std::string> faults = train::checkpoint_faults(folder);
  if (faults.empty()) {
    try {
      for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
        if (!fs::exists(folder / name)) continue;
        const io::SafetensorsFile file = io::SafetensorsFile::open(folder / name);
        for (const std::string& tensor : file.names()) {
          if (!is_float(file.info(tensor).dtype)) continue;
          const TensorSummary s = summary_of(file.info(tensor));
          if (s.nonfinite > 0) {
            faults.push_back(std::string(name) + ": " + tensor + " holds " +
                             std::to_string(s.nonfinite) + " values that are not finite");
          }
        }
      }
      model::load_model(folder.string(), {});  // the weights fit the config
      if (fs::exists(folder / "trainer.json")) train::read_trainer_file(folder);
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  }
  for (const std::string& fault : faults) {
    print_error("ckpt verify", folder.string() + ": " + fault);
  }
  if (faults.empty()) std::printf("%s: sound\n", folder.c_str());
  return faults.empty();
}

int run_verify(const std::string& name) {
  const fs::path path = name;
  if (!fs::exists(path)) throw Error(ErrorCode::kIo, "no such checkpoint or run folder: " + name);
  bool good = true;
  const auto list = train::list_checkpoints(path, false);
  if (list.empty()) return verify_one(path) ? kDone : kFailed;
  for (const train::CheckpointFolder& folder : list)
    good = verify_one(folder.path) && good;
  return good ? kDone : kFailed;
}

}  // namespace

void add_ckpt(CLI::App& app) {
  CLI::App* ckpt = add_verb(app, "ckpt", "List, inspect, verify and convert checkpoints");
  ckpt->require_subcommand(1);
  auto name = std::make_shared<std::string>();
  auto tensors = std::make_shared<bool>(false);

  CLI::App* ls = add_verb(*ckpt, "ls", "The checkpoints of a run: which is last, best, broken",
                          "  kda ckpt ls runs/first");
  ls->add_option("run", *name, "Run folder")->type_name("RUN")->required();
  on_run(ls, [name] { return run_ls(*name); });

  CLI::App* inspect =
      add_verb(*ckpt, "inspect", "Model, training state and tensors of a checkpoint",
               "  kda ckpt inspect runs/first/best --tensors\n"
               "  kda ckpt inspect model.safetensors");
  inspect->add_option("ckpt", *name, "Checkpoint, run folder, RUN/best or a .safetensors file")
      ->type_name("PATH")
      ->required();
  inspect->add_flag("--tensors", *tensors, "Every tensor with its shape and range");
  on_run(inspect, [name, tensors] { return run_inspect(*name, *tensors); });

  CLI::App* verify = add_verb(*ckpt, "verify",
                              "Hashes, structure and finite values of a checkpoint or a whole run",
                              "  kda ckpt verify runs/first");
  verify->add_option("ckpt", *name, "Checkpoint or run folder")->type_name("PATH")->required();
  on_run(verify, [name] { return run_verify(*name); });

  add_ckpt_convert(*ckpt);
  add_ckpt_logits(*ckpt);
}

}  // namespace kda::cli
