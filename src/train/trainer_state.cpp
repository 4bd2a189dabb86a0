#include "train/trainer_state.h"

#include "io/config_reader.h"
#include "kda/error.h"

namespace kda::train {
namespace {

io::Json stats_to_json(const RunningStats& stats) {
  const RunningStats::State& s = stats.state();
  return {{"window", std::vector<double>(s.window.begin(), s.window.end())},
          {"ema_sum", s.ema_sum},
          {"ema_weight", s.ema_weight}};
}

RunningStats stats_from_json(io::ConfigReader reader) {
  RunningStats::State s;
  if (const io::Json* window = reader.raw("window")) {
    if (!window->is_array() || window->size() > RunningStats::kWindow) {
      reader.fail("window", "expected an array of at most 128 numbers");
    }
    for (const io::Json& value : *window) {
      if (!value.is_number()) reader.fail("window", "expected numbers only");
      s.window.push_back(value.get<double>());
    }
  }
  s.ema_sum = reader.require_number("ema_sum");
  s.ema_weight = reader.require_number("ema_weight");
  reader.finish();
  RunningStats stats;
  stats.restore(std::move(s));
  return stats;
}

}  // namespace

io::Json to_json(const TrainerState& s) {
  io::Json json = {
      {"step", s.step},
      {"updates", s.updates},
      {"tokens", s.tokens},
      {"skipped", s.skipped},
      {"empty_windows", s.empty_windows},
      {"elapsed_seconds", s.elapsed_seconds},
      {"cursor", text::to_json(s.cursor)},
      {"window",
       {{"micro", s.window.micro},
        {"tokens", s.window.tokens},
        {"loss_sum", s.window.loss_sum},
        {"targets", s.window.targets},
        {"fault", s.window.fault}}},
      {"eval_pending", s.eval_pending},
      {"sample_pending", s.sample_pending},
  };
  if (s.has_best) {
    json["best"] = {{"step", s.best_step}, {"heldout_loss", s.best_loss}};
    if (s.best_success) json["best"]["success_rate"] = *s.best_success;
  }
  if (s.lr_anchor) json["lr_anchor"] = {{"step", s.lr_anchor->step}, {"lr", s.lr_anchor->lr}};
  json["loss_stats"] = stats_to_json(s.loss_stats);
  json["grad_stats"] = stats_to_json(s.grad_stats);
  return json;
}

TrainerState state_from_json(const io::Json& json, const std::string& source) {
  TrainerState s;
  try {
    io::ConfigReader reader(json, "state");
    s.step = reader.require_int("step", 0);
    s.updates = reader.require_int("updates", 0);
    s.tokens = reader.require_int("tokens", 0);
    s.skipped = reader.require_int("skipped", 0);
    s.empty_windows = reader.require_int("empty_windows", 0);
    s.elapsed_seconds = reader.require_number("elapsed_seconds");
    const io::Json* cursor = reader.raw("cursor");
    if (cursor == nullptr) reader.fail("cursor", "missing");
    s.cursor = text::cursor_from_json(*cursor, "state.cursor");
    io::ConfigReader window = reader.object("window");
    s.window.micro = window.require_int("micro", 0);
    window.read_int("tokens", s.window.tokens, 0);
    s.window.loss_sum = window.require_number("loss_sum");
    s.window.targets = window.require_int("targets", 0);
    s.window.fault = window.require_string("fault");
    window.finish();
    s.eval_pending = reader.require_bool("eval_pending");
    s.sample_pending = reader.require_bool("sample_pending");
    if (reader.has("best")) {
      io::ConfigReader best = reader.object("best");
      s.has_best = true;
      s.best_step = best.require_int("step", 0);
      s.best_loss = best.require_number("heldout_loss");
      if (best.has("success_rate")) s.best_success = best.require_number("success_rate");
      best.finish();
    }
    if (reader.has("lr_anchor")) {
      io::ConfigReader anchor = reader.object("lr_anchor");
      s.lr_anchor = LrAnchor{anchor.require_int("step", 0), anchor.require_number("lr")};
      anchor.finish();
    }
    s.loss_stats = stats_from_json(reader.object("loss_stats"));
    s.grad_stats = stats_from_json(reader.object("grad_stats"));
    reader.finish();
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, source + ": " + error.what());
  }
  return s;
}

}  // namespace kda::train
