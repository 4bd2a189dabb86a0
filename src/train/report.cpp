#include "train/report.h"

#include <array>
#include <cstdio>

#include "train/units.h"

namespace kda::train {
namespace {

std::string printf_text(const char* pattern, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string z_text(const std::optional<double>& z) {
  return z ? printf_text(" (z %+.1f)", *z) : std::string();
}

std::string step_of(std::int64_t step, std::int64_t total) {
  const std::string all = std::to_string(total);
  std::string now = std::to_string(step);
  if (now.size() < all.size()) now.insert(0, all.size() - now.size(), ' ');
  return "step " + now + "/" + all;
}

}  // namespace

std::string console_line(const StepRecord& r) {
  std::string line = step_of(r.step, r.total_steps);
  line += " | tok " + short_count(static_cast<double>(r.tokens)) + "/" +
          short_count(static_cast<double>(r.total_tokens));
  if (r.skipped) {
    line += " | SKIPPED: " + r.why_skipped;
  } else {
    line += printf_text(" | loss %.4f", r.loss) + printf_text(" ema %.4f", r.loss_ema) +
            z_text(r.loss_z);
    line += printf_text(" | gn %.2f", r.grad_norm) + z_text(r.grad_z);
  }
  line += printf_text(" | lr %.2e", r.lr);
  if (r.moe_max_load) line += printf_text(" | load %.2f", *r.moe_max_load);
  line +=
      printf_text(" | %.0f ms", r.step_ms) + " | " + short_count(r.tokens_per_second) + " tok/s";
  line += " | rss " + short_bytes(static_cast<double>(r.resident_bytes));
  if (r.device_bytes > 0) line += " | gpu " + short_bytes(static_cast<double>(r.device_bytes));
  line += printf_text(" | ep %.2f", r.epoch);
  line += " | eta " + short_duration(r.eta_seconds);
  return line;
}

std::string console_line(const EvalRecord& r) {
  std::string line = step_of(r.step, r.total_steps);
  if (r.mt_sentences > 0) {
    line += printf_text(" | translated %.1f %%", 100 * r.success_rate) + " of " +
            std::to_string(r.mt_sentences) + printf_text(", chrF %.1f", r.mean_chrf);
  }
  if (r.has_loss) line += printf_text(" | held-out loss %.4f", r.loss);
  if (r.bits_per_byte > 0) line += printf_text(" | %.4f bits/byte", r.bits_per_byte);
  if (r.has_loss) line += " | " + short_count(static_cast<double>(r.targets)) + " tokens";
  line +=
      r.best ? " | best so far"
             : printf_text(" | best %.4f", r.best_loss) + " at step " + std::to_string(r.best_step);
  line += printf_text(" | %.1f s", r.seconds);
  return line;
}

std::string console_line(const SaveRecord& r) {
  return "saved " + r.folder + " (" + short_bytes(static_cast<double>(r.bytes)) + ", " +
         printf_text("%.1f s", r.seconds) + (r.best ? ", best)" : ")");
}

std::string console_line(const ProgressRecord& r) {
  const double share = r.total > 0 ? 100.0 * r.done / r.total : 100.0;
  std::string line = r.phase + printf_text(" %3.0f%%", share);
  line += r.bytes ? " | " + short_bytes(r.done) + "/" + short_bytes(r.total)
                  : " | " + short_count(r.done) + "/" + short_count(r.total);
  if (r.seconds > 0.05 && r.done > 0) {
    const double rate = r.done / r.seconds;
    line += " | " + (r.bytes ? short_bytes(rate) : short_count(rate)) + "/s";
    if (r.done < r.total) line += " | eta " + short_duration((r.total - r.done) / rate);
  }
  return line;
}

io::Json to_json(const StepRecord& r) {
  io::Json json = {
      {"kind", "step"}, {"step", r.step}, {"tokens", r.tokens}, {"epoch", r.epoch}, {"lr", r.lr}};
  if (r.skipped) {
    json["skipped"] = r.why_skipped;
  } else {
    json["loss"] = r.loss;
    json["loss_ema"] = r.loss_ema;
    if (r.loss_z) json["loss_z"] = *r.loss_z;
    json["grad_norm"] = r.grad_norm;
    if (r.grad_z) json["grad_z"] = *r.grad_z;
  }
  if (r.moe_max_load) json["moe_max_load"] = *r.moe_max_load;
  json["step_ms"] = r.step_ms;
  json["tok_per_s"] = r.tokens_per_second;
  json["rss_bytes"] = r.resident_bytes;
  if (r.device_bytes > 0) json["gpu_bytes"] = r.device_bytes;
  return json;
}

io::Json to_json(const EvalRecord& r) {
  io::Json json = {{"kind", "eval"}, {"step", r.step}};
  if (r.has_loss) {
    json["heldout_loss"] = r.loss;
    json["bits_per_byte"] = r.bits_per_byte;
    json["targets"] = r.targets;
    json["bytes"] = r.bytes;
  }
  if (r.mt_sentences > 0) {
    json["mt_sentences"] = r.mt_sentences;
    json["success_rate"] = r.success_rate;
    json["mean_chrf"] = r.mean_chrf;
  }
  json["best"] = r.best;
  json["seconds"] = r.seconds;
  return json;
}

io::Json to_json(const SampleRecord& r) {
  return {{"kind", "sample"},
          {"step", r.step},
          {"prompt", r.prompt},
          {"text", r.text},
          {"finish", r.finish}};
}

io::Json to_json(const SaveRecord& r) {
  return {{"kind", "save"},   {"step", r.step}, {"folder", r.folder},
          {"bytes", r.bytes}, {"best", r.best}, {"seconds", r.seconds}};
}

bool is_timing_key(std::string_view key) {
  constexpr std::array<std::string_view, 5> kKeys{"step_ms", "tok_per_s", "rss_bytes", "gpu_bytes",
                                                  "seconds"};
  for (std::string_view k : kKeys) {
    if (k == key) return true;
  }
  return false;
}

}  // namespace kda::train
