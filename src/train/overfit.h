/// The smallest proof that operator, model and optimizer learn together: memorise two sentences.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kda::train {

struct OverfitOptions {
  std::vector<std::string> sentences;  ///< empty: one Chinese and one English sentence
  std::string backend = "ref";         ///< of the KDA operator: ref, cpu, auto
  double target_loss = 0.1;            ///< success when the mean loss falls below it
  std::int64_t max_steps = 400;
  double max_seconds = 120;
  double lr = 3e-3;
  std::uint64_t seed = 1;
};

struct OverfitStep {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double seconds = 0;  ///< since the start
};

struct OverfitResult {
  bool reached = false;     ///< loss < target_loss
  bool reproduced = false;  ///< greedy generation gives every sentence back, then EOS
  std::int64_t steps = 0;
  double first_loss = 0;
  double last_loss = 0;
  double seconds = 0;
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;                 ///< per step
  std::vector<std::string> continuations;  ///< of the first characters of each sentence
  std::vector<std::string> prompts;
};

/// Trains the tiny model on the bytes of the sentences (vocabulary: 256 bytes, BOS, EOS) until the
/// loss is under the target or a limit is reached, then asks it to complete them. Polls for signals
/// at every step (throws Interrupted). Throws kNonFinite naming the step.
OverfitResult overfit(const OverfitOptions& options,
                      const std::function<void(const OverfitStep&)>& on_step = {});

}  // namespace kda::train
