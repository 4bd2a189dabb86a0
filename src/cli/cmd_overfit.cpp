#include <cstdio>
#include <memory>
#include <string>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "io/escape.h"
#include "io/number_text.h"
#include "kda/error.h"
#include "train/device.h"
#include "train/overfit.h"
#include "train/signals.h"

namespace kda::cli {
namespace {

int run_overfit(const train::OverfitOptions& options, int threads) {
  if (!(options.lr > 0) || !(options.max_seconds > 0)) {
    throw Error(ErrorCode::kInvalidArgument, "--lr and --seconds: expected numbers > 0, got " +
                                                 io::number_text(options.lr) + " and " +
                                                 io::number_text(options.max_seconds));
  }
  train::check_backend(options.backend, {});
  const train::SignalScope signals;
  binding::set_num_threads(threads);
  std::printf("overfit: the tiny model memorises its sentences, operator backend %s, %d threads\n",
              options.backend.c_str(), binding::num_threads());
  const train::OverfitResult result = train::overfit(options, [](const train::OverfitStep& step) {
    if (step.step % 20 != 0 && step.step != 1) return;
    std::printf("step %4lld | loss %.4f | gn %.2f | %.1f s\n", static_cast<long long>(step.step),
                step.loss, step.grad_norm, step.seconds);
    std::fflush(stdout);
  });
  std::printf("%lld parameters, %lld tokens per step; loss %.4f -> %.4f in %lld steps, %.1f s\n",
              static_cast<long long>(result.parameters), static_cast<long long>(result.tokens),
              result.first_loss, result.last_loss, static_cast<long long>(result.steps),
              result.seconds);
  for (std::size_t i = 0; i < result.prompts.size(); ++i) {
    std::printf("%s -> %s\n", io::escaped(result.prompts[i]).c_str(),
                io::escaped(result.continuations[i], 400).c_str());
  }
  if (!result.reached) {
    print_error("overfit", "the loss did not fall below " + io::number_text(options.target_loss));
    return kFailed;
  }
  std::printf("%s\n", styled(Style::kGreen, result.reproduced
                                                ? "done: loss under the target, text reproduced"
                                                : "done: loss under the target")
                          .c_str());
  return kDone;
}

}  // namespace

void add_overfit(CLI::App& app) {
  CLI::App* verb =
      add_verb(app, "overfit", "Memorise two sentences: the smallest proof that everything learns",
               "  kda overfit                     # the reference operator\n"
               "  kda overfit --backend cpu --text \"any text\" --text 任何文字\n"
               "\n"
               "Exit code 0 only when the loss falls below the target within the limits.");
  auto options = std::make_shared<train::OverfitOptions>();
  auto threads = std::make_shared<int>(0);
  verb->add_option("--backend", options->backend, "Backend of the operator: ref, cpu, auto")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--text", options->sentences, "Sentence to memorise; repeatable")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("TEXT");
  add_real(verb, "--target", options->target_loss, "Loss to reach");
  add_whole(verb, "--steps", options->max_steps, {.low = 1}, "Steps at most");
  add_real(verb, "--seconds", options->max_seconds, "Seconds at most");
  add_real(verb, "--lr", options->lr, "Learning rate");
  add_whole(verb, "--seed", options->seed, {}, "Seed of the weights");
  add_whole(verb, "--threads", *threads, kThreadRange, "CPU threads; 0 = all");
  on_run(verb, [options, threads] { return run_overfit(*options, *threads); });
}

}  // namespace kda::cli
