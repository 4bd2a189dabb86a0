// kda_bench_model [--preset toy] [--dtype f32] [--tokens 2048] [--threads 2] [--seconds 5]
//                 [--stages] [--recompute] [--decode]
// One JSON line: training speed (forward and backward, no optimizer), or decoding speed. With
// --stages also a table of the layers, each timed alone.
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "binding/functional.h"
#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/cost.h"
#include "model/tensors.h"
#include "stages.h"

namespace kda::bench {
namespace {

struct Options {
  std::string preset = "toy";
  std::string dtype = "f32";
  std::int64_t tokens = 2048;
  int threads = 2;
  double seconds = 5;
  bool stages = false;
  bool recompute = false;
  bool decode = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--stages" || name == "--recompute" || name == "--decode") {
      (name == "--stages" ? o.stages : name == "--recompute" ? o.recompute : o.decode) = true;
      continue;
    }
    if (i + 1 == argc) throw Error(ErrorCode::kInvalidArgument, name + ": unknown, or no value");
    const std::string value = argv[++i];
    if (name == "--preset") {
      o.preset = value;
    } else if (name == "--dtype") {
      o.dtype = value;
    } else if (name == "--tokens") {
      o.tokens = std::atoll(value.c_str());
    } else if (name == "--threads") {
      o.threads = std::atoi(value.c_str());
    } else if (name == "--seconds") {
      o.seconds = std::atof(value.c_str());
    } else {
      throw Error(ErrorCode::kInvalidArgument, name + ": unknown option");
    }
  }
  if (o.tokens < 1) throw Error(ErrorCode::kInvalidArgument, "--tokens: expected >= 1");
  return o;
}

void print_stages(const std::vector<Stage>& stages) {
  std::printf("%-16s %10s %10s %6s %12s\n", "layer", "fwd ms", "fwd+bwd ms", "calls",
              "ms per step");
  double total = 0;
  for (const Stage& stage : stages) {
    const double step = stage.both.median_ms * stage.count;
    total += step;
    std::printf("%-16s %10.3f %10.3f %6.0f %12.2f\n", stage.name.c_str(), stage.forward.median_ms,
                stage.both.median_ms, stage.count, step);
  }
  std::printf("%-16s %10s %10s %6s %12.2f\n", "sum", "", "", "", total);
}

void run(const Options& o) {
  const model::KDAConfig config = model::KDAConfig::preset(o.preset);
  model::ModelOptions model_options;
  model_options.compute = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  if (o.dtype != "f32" && o.dtype != "bf16") {
    throw Error(ErrorCode::kInvalidArgument, "--dtype: expected f32 or bf16, got " + o.dtype);
  }
  binding::set_num_threads(o.threads);
  const model::CausalLM lm(config, model_options);
  const auto ids = at::randint(config.vocab_size, {o.tokens}, at::TensorOptions().dtype(at::kLong));
  if (o.decode) {
    model::DecodeState state = lm.new_state(o.tokens);
    const Timing t = time_it([&] { lm.step(ids, state); }, o.seconds);
    std::printf(
        "{\"bench\":\"decode\",\"preset\":\"%s\",\"dtype\":\"%s\",\"rows\":%lld,"
        "\"threads\":%d,\"median_ms\":%.3f,\"min_ms\":%.3f,\"tok_per_s\":%.0f}\n",
        o.preset.c_str(), o.dtype.c_str(), static_cast<long long>(o.tokens), o.threads, t.median_ms,
        t.min_ms, static_cast<double>(o.tokens) / t.median_ms * 1e3);
    return;
  }
  model::ForwardOptions options;
  options.recompute_blocks = o.recompute;
  const auto parameters = lm.parameters();
  const Timing t = time_it(
      [&] {
        torch::autograd::backward({lm.loss({ids, {}}, ids, options).loss_sum}, {});
        for (const model::Parameter& p : parameters) {
          at::Tensor tensor = p.tensor;
          tensor.mutable_grad().reset();
        }
      },
      o.seconds);
  const double flops = model::flops_per_token(config).training() * static_cast<double>(o.tokens);
  std::printf(
      "{\"bench\":\"train\",\"preset\":\"%s\",\"dtype\":\"%s\",\"tokens\":%lld,"
      "\"threads\":%d,\"recompute\":%s,\"median_ms\":%.2f,\"min_ms\":%.2f,\"max_ms\":%.2f,"
      "\"tok_per_s\":%.0f,\"gflop_per_s\":%.1f}\n",
      o.preset.c_str(), o.dtype.c_str(), static_cast<long long>(o.tokens), o.threads,
      o.recompute ? "true" : "false", t.median_ms, t.min_ms, t.max_ms,
      static_cast<double>(o.tokens) / t.median_ms * 1e3, flops / t.median_ms * 1e-6);
  if (o.stages) print_stages(time_stages(config, model_options.compute, o.tokens, 0.3));
}

}  // namespace
}  // namespace kda::bench

int main(int argc, char** argv) {
  try {
    kda::bench::run(kda::bench::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kda_bench_model: %s\n", error.what());
    return 1;
  }
}
