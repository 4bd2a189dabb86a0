#include <cstdio>
#include <cstdlib>
#include <map>
#include <system_error>
#include <vector>

#include "binding/functional.h"
#include "io/escape.h"
#include "io/sha256.h"
#include "kda/backend.h"
#include "kda/ops/chunk.h"
#include "kda/version.h"
#include "train/process_memory.h"
#include "train/run_memory.h"
#include "train/run_plan.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

std::string size_text(std::int64_t bytes) { return short_bytes(static_cast<double>(bytes)); }

/// What "auto" comes to on the host for the operator as this model calls it. A small call is asked:
/// the choice depends on shapes and types, not on the number of tokens.
std::string host_backend(const model::KDAConfig& m) {
  constexpr std::int64_t kTokens = 16;
  const std::vector<float> k(static_cast<std::size_t>(kTokens * m.num_v_heads * m.head_k_dim));
  const std::vector<float> v(static_cast<std::size_t>(kTokens * m.num_v_heads * m.head_v_dim));
  std::vector<float> o(v.size());
  ChunkForwardParams params;
  params.in.q = view_of(k.data(), {1, kTokens, m.num_heads, m.head_k_dim});
  params.in.k = view_of(k.data(), {1, kTokens, m.num_heads, m.head_k_dim});
  params.in.v = view_of(v.data(), {1, kTokens, m.num_v_heads, m.head_v_dim});
  params.in.g_ln = view_of(k.data(), {1, kTokens, m.num_v_heads, m.head_k_dim});
  params.in.beta = view_of(k.data(), {1, kTokens, m.num_v_heads});
  params.chunk = static_cast<int>(m.chunk);
  params.o = view_of(o.data(), {1, kTokens, m.num_v_heads, m.head_v_dim});
  return name_of(explain_chunk_forward(params).chosen);
}

std::string effective_backend(const RunPlan& plan) {
  if (plan.options.backend != "auto") return plan.options.backend;
  return (plan.device.device.is_cpu() ? host_backend(plan.model) : std::string("cuda"));
}

/// Texts for wishes: what the run really uses.
std::map<std::string, std::string> effective_values(const RunPlan& plan) {
  const TrainOptions& o = plan.options;
  std::map<std::string, std::string> texts{
      {"threads", std::to_string(binding::num_threads())},
      {"device", plan.device.text},
      {"backend", effective_backend(plan)},
  };
  if (o.threads == 0) {
    texts["threads"] += std::getenv("OMP_NUM_THREADS") != nullptr
                            ? " (OMP_NUM_THREADS)"
                            : " (all that this process may use)";
  }
  if (o.device == "auto" && texts["device"].find("(auto") == std::string::npos) {
    texts["device"] += " (auto)";
  }
  if (o.backend == "auto") texts["backend"] += " (auto)";
  for (const auto& [key, why] : idle_options(plan))
    texts[key] = "-";
  return texts;
}

io::Json effective_options(const RunPlan& plan) {
  io::Json json = io::parse_json(options_to_json(plan.options), "options");
  for (const auto& [key, why] : idle_options(plan))
    json.erase(key);
  if (plan.options.preset.empty()) json.erase("preset");
  return json;
}

void report_model(const RunPlan& plan, Reporter& reporter) {
  const model::KDAConfig& m = plan.model;
  const model::ParameterCount count = model::count_parameters(m);
  const auto number = [](std::int64_t value) { return short_count(static_cast<double>(value)); };
  reporter.note(
      "model      " + number(count.total()) + " parameters (embedding " + number(count.embedding) +
      ", attention " + number(count.attention) + ", feed-forward " + number(count.feed_forward) +
      "); " + std::to_string(m.num_layers) + " layers" +
      (m.num_mla_layers() > 0 ? " (" + std::to_string(m.num_mla_layers()) + " MLA)" : "") +
      ", width " + std::to_string(m.hidden_size) + ", " + std::to_string(m.num_heads) +
      " heads, K=" + std::to_string(m.head_k_dim) + " V=" + std::to_string(m.head_v_dim) +
      ", vocabulary " + std::to_string(m.vocab_size));
}

void report_budget(const RunPlan& plan, Reporter& reporter) {
  const auto tokens = static_cast<double>(plan.total_steps * plan.tokens_per_step);
  const auto parameters = static_cast<double>(model::count_parameters(plan.model).total());
  char text[192];
  std::snprintf(text, sizeof text,
                "budget     %lld steps x %s tokens = %s tokens, %.2f epochs, %.4g tok/param",
                static_cast<long long>(plan.total_steps),
                short_count(static_cast<double>(plan.tokens_per_step)).c_str(),
                short_count(tokens).c_str(), tokens / static_cast<double>(plan.data.num_tokens()),
                tokens / parameters);
  reporter.note(text);
  // Below this share of what a model of its size learns from (about 20 tokens per parameter) a run
  // shows that everything works, and nothing else.
  constexpr double kSmokeTokensPerParameter = 0.2;
  if (plan.options.task == Task::kPretrain && tokens < kSmokeTokensPerParameter * parameters) {
    reporter.note("           a smoke run: so few tokens per parameter make no language model");
  }
}

void report_memory(const RunPlan& plan, Reporter& reporter) {
  const model::MemoryEstimate memory = memory_of(plan);
  const bool on_host = plan.device.device.is_cpu();
  const std::int64_t now = on_host ? resident_bytes() : 0;
  const std::int64_t available = available_on(plan);
  std::string text = "memory     about " + size_text(memory.total_bytes() + now) +
                     (on_host ? ": program " + size_text(now) + ", weights "
                              : " on " + plan.device.text + ": weights ");
  text += size_text(memory.parameters_bytes) + ", gradients " + size_text(memory.gradients_bytes) +
          ", optimizer " + size_text(memory.optimizer_bytes) + ", activations " +
          size_text(memory.activations_bytes) + ", scratch " + size_text(memory.scratch_bytes) +
          (on_host ? "" : ", device " + size_text(memory.device_bytes)) + "; available " +
          size_text(available);
  reporter.note(text);
  // Their pages show as memory of the process; the system takes them back when it needs them.
  reporter.note("           token files of " + size_text(plan.data.mapped_bytes()) +
                " are mapped on the host and come on top while memory is free");
  if (!plan.recompute_note.empty()) reporter.note("recompute  " + plan.recompute_note);
  if (available > 0 && memory.total_bytes() > available) {
    reporter.warn(std::string("the run may not fit into memory: ") + kMemoryAdvice);
  }
}

void report_disk(const RunPlan& plan, Reporter& reporter) {
  const std::int64_t checkpoint =
      estimated_checkpoint_bytes(model::count_parameters(plan.model).total(), false);
  const std::int64_t disk = checkpoint * (plan.options.keep_last + 2);
  std::error_code status;
  const fs::space_info space = fs::space(plan.run, status);
  std::string line = "disk       checkpoints of " + size_text(checkpoint) + ", up to " +
                     size_text(disk) + " in " + plan.run.string();
  if (!status) line += "; free " + size_text(static_cast<std::int64_t>(space.available));
  reporter.note(line);
  if (!status && static_cast<std::int64_t>(space.available) < disk) {
    reporter.warn("the disk may be too small for the checkpoints of this run");
  }
}

/// A run that was given another length: where its learning rate goes from here.
void report_new_length(const RunPlan& plan, Reporter& reporter) {
  const std::int64_t step = plan.resumed->state.step;
  const std::optional<LrAnchor>& anchor = plan.schedule.anchor;
  char text[256];
  if (anchor && anchor->step == step) {
    std::snprintf(text, sizeof text,
                  "           the length changed: the learning rate goes from %.3e at step %lld "
                  "down to %.3e at step %lld and never up (a new peak: --init-from)",
                  anchor->lr, static_cast<long long>(step), plan.schedule.lr_at(plan.total_steps),
                  static_cast<long long>(plan.total_steps));
  } else {
    std::snprintf(text, sizeof text,
                  "           the length changed: the learning rate is %.3e at step %lld as before "
                  "and %.3e at step %lld",
                  plan.schedule.lr_at(step), static_cast<long long>(step),
                  plan.schedule.lr_at(plan.total_steps), static_cast<long long>(plan.total_steps));
  }
  reporter.note(text);
}

void report_resumed(const RunPlan& plan, Reporter& reporter) {
  const TrainerState& s = plan.resumed->state;
  std::string from =
      "resumed    " + plan.resumed_from->path.string() + ": step " + std::to_string(s.step);
  if (s.window.micro > 0) from += " + " + std::to_string(s.window.micro) + " micro-batches";
  from += ", " + short_count(static_cast<double>(s.tokens)) + " tokens read";
  if (s.has_best) {
    char text[96];
    std::snprintf(text, sizeof text, ", best held-out loss %.4f at step %lld", s.best_loss,
                  static_cast<long long>(s.best_step));
    from += text;
  }
  reporter.note(from);
  const TrainOptions& was = plan.resumed->options;
  const TrainOptions& o = plan.options;
  if (was.steps != o.steps || was.max_tokens != o.max_tokens || was.epochs != o.epochs) {
    report_new_length(plan, reporter);
  }
}

}  // namespace

void write_run_config(const RunPlan& plan) {
  const io::Json json = {
      {"format", "kda-run"},
      {"version", 1},
      {"kda", kda::version()},
      {"train", effective_options(plan)},
      {"model", io::parse_json(plan.model.to_json(), "model config")},
      {"tokenizer",
       {{"sha256", io::to_hex(plan.tokenizer->info().sha256)},
        {"vocab_size", plan.tokenizer->vocab_size()}}},
      {"data",
       {{"fingerprint", plan.data.fingerprint()},
        {"documents", plan.data.num_documents()},
        {"tokens", plan.data.num_tokens()},
        {"targets", plan.data.num_targets()},
        {"heldout_tokens", plan.data.heldout_tokens()}}},
      {"derived",
       {{"parameters", model::count_parameters(plan.model).total()},
        {"device", plan.device.text},
        {"threads", binding::num_threads()},
        {"backend", effective_backend(plan)},
        {"total_steps", plan.total_steps},
        {"tokens_per_step", plan.tokens_per_step},
        {"total_tokens", plan.total_steps * plan.tokens_per_step}}},
  };
  io::write_json_file(plan.run / "config.json", json);
}

void report_plan(const RunPlan& plan, Reporter& reporter) {
  const TrainOptions& o = plan.options;
  reporter.heading("configuration");
  reporter.note(describe_options(o, effective_values(plan)));
  reporter.heading("run");
  report_model(plan, reporter);
  reporter.note("data       " + plan.data.description());
  if (!plan.translations.empty()) {
    std::size_t sentences = 0;
    for (const TranslationSet& set : plan.translations)
      sentences += set.sources.size();
    reporter.note("translated at every evaluation: " + std::to_string(sentences) +
                  " sentences; the best checkpoint has the most successes, then the lowest loss");
  }
  report_budget(plan, reporter);
  reporter.note("device     " + plan.device.text + ", threads " +
                std::to_string(binding::num_threads()) + ", operator backend " +
                effective_backend(plan) + ", " + o.dtype + " activations, fp32 weights, seed " +
                std::to_string(o.seed));
  report_memory(plan, reporter);
  report_disk(plan, reporter);
  if (plan.resumed_from) report_resumed(plan, reporter);
}

std::string preview(const text::PackedBatch& batch, const text::Tokenizer& tokenizer) {
  constexpr std::size_t kSequences = 3;
  constexpr std::size_t kBytesShown = 96;
  std::string lines;
  for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size() && n < kSequences; ++n) {
    const auto begin = batch.inputs.begin() + batch.cu_seqlens[n];
    const auto end = batch.inputs.begin() + batch.cu_seqlens[n + 1];
    std::vector<std::int32_t> ids;
    for (auto it = begin; it != end; ++it)
      ids.push_back(static_cast<std::int32_t>(*it));
    char head[48];
    std::snprintf(head, sizeof head, "  %5zu tokens  ", ids.size());
    lines += head + io::escaped(tokenizer.decode(ids), kBytesShown) + "\n";
  }
  return lines;
}

}  // namespace kda::train
