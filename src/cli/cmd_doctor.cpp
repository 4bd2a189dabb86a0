#include <ATen/Version.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/build_info.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "cli/self_test.h"
#include "kda/backend.h"
#include "kda/cpu_info.h"
#include "model/causal_lm.h"
#include "model/cost.h"
#include "train/device.h"
#include "train/process_memory.h"
#include "train/units.h"

namespace kda::cli {
namespace {

void row(const char* name, const std::string& value) {
  std::printf("%-14s %s\n", name, value.c_str());
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string(name) + " not set" : std::string(name) + "=" + value;
}

std::string bytes(std::int64_t value) { return train::short_bytes(static_cast<double>(value)); }

/// Largest difference between one full forward pass and the same tokens fed in pieces, relative to
/// the largest logit: state, convolution windows and cuts in one number.
double prefill_difference() {
  model::KDAConfig config = model::KDAConfig::preset("tiny");
  model::ModelOptions options;
  options.seed = 7;
  const model::CausalLM model(config, options);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 150; ++i)
    ids.push_back((i * 37 + 11) % config.vocab_size);
  model::DecodeState whole = model.new_state(1);
  const at::Tensor expected = model.prefill(model::pack({ids}), whole);
  model::DecodeState state = model.new_state(1);
  at::Tensor given;
  const std::int64_t cuts[] = {0, 64, 65, 68, 131, 150};
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
    given = model.prefill(
        model::pack({std::vector<std::int64_t>(ids.begin() + cuts[i], ids.begin() + cuts[i + 1])}),
        state);
  }
  return given.sub(expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

int run_doctor(int threads) {
  // First of all: it loads the CUDA library, where there is one to load.
  const train::DeviceChoice device = train::choose_device("auto");
  binding::set_num_threads(threads);
  row("kda", std::string(kVersion) + ", commit " + kCommit + ", " + kBuildType + ", " + kCompiler);
  row("torch", std::string(kTorchVersion) + ", CPU capability " + at::get_cpu_capability());
  row("cpu", cpu_model() + ", " + std::to_string(std::thread::hardware_concurrency()) +
                 " logical cores, SIMD target " + cpu_simd_target());
  row("threads", std::to_string(binding::num_threads()) + " in effect (" +
                     environment("OMP_NUM_THREADS") + ", --threads " + std::to_string(threads) +
                     ")");
  row("memory", bytes(train::available_bytes()) + " available, this process " +
                    bytes(train::resident_bytes()));

  const train::DeviceMemory gpu = train::device_memory(device.device);
  row("device",
      device.text + (gpu.total > 0 ? ", " + bytes(gpu.free) + " of " + bytes(gpu.total) + " free"
                                   : std::string()));

  std::string backends;
  for (Backend backend : available_backends()) {
    backends += (backends.empty() ? "" : ", ") + std::string(name_of(backend));
  }
  row("backends", backends);
  const OperatorCase sample({1, 64, 1, 32, 32});
  ChunkForwardParams params;
  params.in = sample.inputs();
  std::vector<float> o(64 * 32);
  params.o = view_of(o.data(), {1, 64, 1, 32});
  const BackendChoice choice = explain_chunk_forward(params);
  row("auto chooses", name_of(choice.chosen));
  for (const BackendVerdict& verdict : choice.verdicts) {
    const std::string name = std::string("  ") + name_of(verdict.backend);
    row(name.c_str(), verdict.reason.empty() ? "can serve" : verdict.reason);
  }

  for (const char* preset : {"tiny", "toy"}) {
    model::KDAConfig config = model::KDAConfig::preset(preset);
    model::TrainingShape shape;
    shape.tokens_per_micro_batch = 4 * 256;
    const model::MemoryEstimate memory = model::estimate_training_memory(config, shape);
    row(preset, train::short_count(static_cast<double>(model::count_parameters(config).total())) +
                    " parameters; training at batch 4 x 256 needs about " +
                    bytes(memory.total_bytes() + train::resident_bytes()));
  }

  bool good = true;
  const SelfTestResult test = self_test(Backend::kCpu);
  if (!test.ran) {
    row("self-test", "operator, cpu against ref: not run: " + test.skipped);
  } else {
    good = test.passed;
    row("self-test", std::string("operator, cpu against ref: output ") +
                         scientific(test.output_error) + ", gradients " +
                         scientific(test.gradient_error) + (test.passed ? ", ok" : ", FAILED"));
  }
  const double prefill = prefill_difference();
  const bool prefill_good = prefill < 1e-4;
  good = good && prefill_good;
  row("self-test", "model, prefill in 5 pieces against one: " + scientific(prefill) +
                       (prefill_good ? ", ok" : ", FAILED"));
  std::printf("%s\n", good ? styled(Style::kGreen, "all well").c_str()
                           : styled(Style::kRed, "something is wrong").c_str());
  return good ? kDone : kFailed;
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* verb = add_verb(app, "doctor", "Versions, threads, backends, memory, a self-test",
                            "  kda doctor\n"
                            "  kda doctor --threads 1");
  auto threads = std::make_shared<int>(0);
  add_whole(verb, "--threads", *threads, kThreadRange, "CPU threads; 0 = all");
  on_run(verb, [threads] { return run_doctor(*threads); });
}

}  // namespace kda::cli
