#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "cli/self_test.h"
#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/generate.h"
#include "train/adamw.h"
#include "train/device.h"
#include "train/evaluate.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchCommand {
  std::vector<int> threads;
  std::string backend = "auto";
  std::string preset = "toy";
  double seconds = 1.0;  ///< per measurement
  bool no_ops = false;
  bool no_model = false;
};

struct Timing {
  double median = 0;  ///< seconds per call
  double best = 0;
};

/// Calls `work` once to warm up, then for about `seconds`, at least three times.
Timing measure(double seconds, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 ||
         std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    train::poll_stop();
    const auto begin = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

std::string rate(double tokens, double seconds) { return train::short_count(tokens / seconds); }

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", seconds * 1e3);
  return text;
}

std::string shape_text(const OperatorCase::Shape& s) {
  return "B" + std::to_string(s.batch) + " T" + std::to_string(s.tokens) + " H" +
         std::to_string(s.heads) + " K" + std::to_string(s.key_dim) + " V" +
         std::to_string(s.value_dim);
}

/// One line as soon as it is measured: a table that waits for its last row looks like a hang.
void print_row(const std::string& work, const std::string& shape, const std::string& threads,
               const std::string& time, const std::string& best, const std::string& tokens) {
  std::printf("%-24s %-22s %7s %10s %10s %10s\n", work.c_str(), shape.c_str(), threads.c_str(),
              time.c_str(), best.c_str(), tokens.c_str());
  std::fflush(stdout);
}

void bench_operator(const BenchCommand& command) {
  const OperatorCase::Shape shapes[] = {{1, 2048, 8, 64, 64}, {4, 512, 16, 64, 64}};
  const OperatorCase::Shape decode_shape{64, 1, 8, 64, 64};
  train::check_backend(command.backend, {});
  const Backend backend = backend_from_name(command.backend);
  std::printf("operator, fp32, backend %s\n", command.backend.c_str());
  print_row("work", "shape", "threads", "median ms", "best ms", "tok/s");
  for (int threads : command.threads) {
    binding::set_num_threads(threads);
    const std::string used = std::to_string(binding::num_threads());
    const auto add = [&](const char* op, const OperatorCase::Shape& shape, double tokens,
                         const std::function<void()>& work) {
      const Timing timing = measure(command.seconds, work);
      print_row(op, shape_text(shape), used, milliseconds(timing.median), milliseconds(timing.best),
                rate(tokens, timing.median));
    };
    for (const OperatorCase::Shape& shape : shapes) {
      OperatorCase data(shape);
      const auto tokens = static_cast<double>(data.num_tokens());
      add("chunk forward", shape, tokens, [&] { data.forward(backend, false); });
      add("chunk forward+backward", shape, tokens, [&] {
        data.forward(backend, true);
        data.backward(backend, true);
      });
    }
    OperatorCase data(decode_shape);
    add("decode step", decode_shape, static_cast<double>(data.num_tokens()),
        [&] { data.decode(backend); });
  }
}

text::PackedBatch synthetic_batch(std::int64_t rows, std::int64_t seq_len, std::int64_t vocab) {
  text::PackedBatch batch;
  batch.rows = rows;
  batch.seq_len = seq_len;
  for (std::int64_t i = 0; i < rows * seq_len; ++i) {
    batch.inputs.push_back((i * 7919 + 13) % vocab);
    batch.targets.push_back((i * 104729 + 7) % vocab);
  }
  for (std::int64_t r = 0; r <= rows; ++r)
    batch.cu_seqlens.push_back(r * seq_len);
  batch.num_targets = rows * seq_len;
  return batch;
}

void bench_model(const BenchCommand& command) {
  constexpr std::int64_t kRows = 4;
  constexpr std::int64_t kSeqLen = 256;
  constexpr std::int64_t kNewTokens = 32;
  const model::KDAConfig config = model::KDAConfig::preset(command.preset);
  std::printf("\nmodel %s\n", command.preset.c_str());
  print_row("work", "dtype", "threads", "median ms", "best ms", "tok/s");
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string name = dtype == DType::kBF16 ? "bf16" : "fp32";
    model::ModelOptions options;
    options.compute = dtype;
    options.backend = command.backend;
    const model::CausalLM model(config, options);
    train::AdamW optimizer(model.parameters(), {});
    const train::BatchTensors batch =
        train::to_tensors(synthetic_batch(kRows, kSeqLen, config.vocab_size));
    for (int threads : command.threads) {
      binding::set_num_threads(threads);
      const std::string used = std::to_string(binding::num_threads());
      const auto add = [&](const char* what, double tokens, const std::function<void()>& work) {
        const Timing timing = measure(command.seconds, work);
        print_row(what, name, used, milliseconds(timing.median), milliseconds(timing.best),
                  rate(tokens, timing.median));
      };
      add("training step, 4 x 256", kRows * kSeqLen, [&] {
        const model::LossOutput loss = model.loss(batch.packed, batch.targets);
        loss.loss_sum.div(static_cast<double>(loss.num_tokens)).backward();
        const train::GradientStats gradients = optimizer.gradient_stats();
        optimizer.step(1e-4, train::clip_scale(gradients.norm, 1.0));
        optimizer.clear_gradients();
      });
      add("held-out loss, 4 x 256", kRows * kSeqLen,
          [&] { model.token_losses(batch.packed, batch.targets); });
      model::GenerateOptions generate;
      generate.max_new_tokens = kNewTokens;
      add("generate 32, 1 row", kNewTokens, [&] { model::generate(model, {{1, 2, 3}}, generate); });
    }
  }
}

int run_bench(BenchCommand command) {
  const train::SignalScope signals;
  if (command.threads.empty()) {
    binding::set_num_threads(0);
    const int all = binding::num_threads();
    command.threads = all > 1 ? std::vector<int>{1, all} : std::vector<int>{1};
  }
  for (int threads : command.threads) {
    if (threads < 1 || threads > kThreadRange.high) {
      throw Error(ErrorCode::kInvalidArgument, "--threads: expected numbers from 1 to " +
                                                   std::to_string(kThreadRange.high) + ", got " +
                                                   std::to_string(threads));
    }
  }
  if (!command.no_ops) bench_operator(command);
  if (!command.no_model) bench_model(command);
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* verb = add_verb(app, "bench", "Tokens per second of the operator and the model, here",
                            "  kda bench\n"
                            "  kda bench --threads 1,2,8 --no-ops --preset toy");
  auto command = std::make_shared<BenchCommand>();
  verb->add_option("--threads", command->threads, "Thread counts, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("N,N");
  verb->add_option("--backend", command->backend, "Backend of the operator: auto, cpu, ref")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--preset", command->preset, "Model to time: tiny, toy")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--seconds", command->seconds, "Time per measurement")
      ->type_name("X")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  verb->add_flag("--no-ops", command->no_ops, "Leave out the operator");
  verb->add_flag("--no-model", command->no_model, "Leave out the model");
  on_run(verb, [command] { return run_bench(*command); });
}

}  // namespace kda::cli
