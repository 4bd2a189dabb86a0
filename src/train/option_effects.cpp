#include "train/option_effects.h"

#include <initializer_list>
#include <utility>

#include "kda/error.h"
#include "train/profile.h"

namespace kda::train {
namespace {

/// Collects keys with one reason; the first reason that is found for a key stays.
void add(WithoutEffect& idle, std::initializer_list<const char*> keys, const std::string& why) {
  for (const char* key : keys)
    idle.emplace(key, why);
}

/// Values that ask for nothing.
bool is_nothing(const std::string& value) {
  return value.empty() || value == "0" || value == "off" || value == "false";
}

/// Key -> text of every value.
std::map<std::string, std::string> texts_of(const TrainOptions& options) {
  std::map<std::string, std::string> texts;
  for_each_field(
      options, [&](const FieldInfo& info, const auto& field) { texts[info.key] = to_text(field); });
  return texts;
}

void other_verb(WithoutEffect& idle, const TrainOptions& o) {
  for_each_field(o, [&](const FieldInfo& info, const auto&) {
    if (info.verbs == Verbs::kNone || info.belongs_to(o.task)) return;
    add(idle, {info.key},
        std::string("in `kda ") + name_of(o.task) + "`: it belongs to `kda " +
            name_of(o.task == Task::kSft ? Task::kPretrain : Task::kSft) + "`");
  });
}

}  // namespace

WithoutEffect without_effect(const TrainOptions& o) {
  WithoutEffect idle;
  other_verb(idle, o);
  if (o.optimizer != "muon") {
    add(idle, {"momentum", "qk_clip"}, "with --optimizer " + o.optimizer + "; it belongs to muon");
  }
  if (o.schedule != "wsd") {
    add(idle, {"decay"},
        "with --schedule " + o.schedule +
            ", which decays from the warm-up to the end; it belongs "
            "to wsd");
  }
  if (o.schedule == "wsd" && o.decay.value == 0) {
    add(idle, {"lr_floor"}, "with --decay 0: the rate never falls");
  }
  if (o.attnres != "block") {
    add(idle, {"attnres_block_size"},
        o.attnres.empty() ? "without --attnres block" : "with --attnres " + o.attnres);
  }
  if (o.sample_every.every == 0) {
    add(idle, {"sample_prompt", "sample_tokens"}, "with --sample-every off");
  }
  if (o.sample_tokens == 0) {
    add(idle, {"sample_every", "sample_prompt"}, "with --sample-tokens 0");
  }
  if (o.eval_every.every == 0) {
    add(idle, {"eval_tokens", "mt_pairs", "mt_tokens", "src", "ref"}, "with --eval-every off");
  }
  if (o.mt_pairs == 0) add(idle, {"mt_tokens", "src", "ref"}, "with --mt-pairs 0");
  return idle;
}

WithoutEffect without_effect(const TrainOptions& o, const RunFacts& facts) {
  WithoutEffect idle;
  if (facts.packed_data) {
    add(idle, {"cache"}, "on a folder of `kda data pack`: its tokens are made already");
    add(idle, {"heldout_share"}, "on a folder of `kda data pack`: it was split when it was made");
  }
  if (facts.has_heldout_file) {
    add(idle, {"heldout_share"}, "on data with a held-out file of its own (heldout*)");
  }
  if (!facts.has_heldout) {
    add(idle, {"eval_tokens"}, "without held-out text (see --heldout-share)");
    if (!facts.has_translations) {
      add(idle, {"eval_every"}, "without held-out text (see --heldout-share)");
    }
  }
  if (!facts.has_translations) {
    add(idle, {"mt_pairs", "mt_tokens"},
        "without sentences to translate: --data has no eval/dev.en and eval/dev.zh, and there is "
        "no --src");
  }
  if (facts.num_mla_layers == 0) {
    add(idle, {"qk_clip"}, "on a model without MLA layers (it bounds their attention logits)");
  }
  const std::string run = "the run has " + std::to_string(facts.total_steps) +
                          (facts.total_steps == 1 ? " step" : " steps");
  if (o.stop_after.value > facts.total_steps) {
    add(idle, {"stop_after"}, "behind the end: " + run);
  }
  if (o.poison_step.value > facts.total_steps) {
    add(idle, {"poison_step"}, "behind the end: " + run);
  }
  if (const std::int64_t needed = StepProfiler::steps_needed(o.profile);
      o.profile > 0 && needed > facts.total_steps) {
    add(idle, {"profile"}, "here: it needs " + std::to_string(needed) + " steps, " + run);
  }
  return idle;
}

std::vector<std::string> refuse_without_effect(const WithoutEffect& idle,
                                               const TrainOptions& options,
                                               const std::set<std::string>& given,
                                               const std::set<std::string>& from_file) {
  const std::map<std::string, std::string> values = texts_of(options);
  const std::map<std::string, std::string> defaults =
      texts_of(options.task == Task::kSft ? sft_defaults() : TrainOptions{});
  std::vector<std::string> warnings;
  for (const auto& [key, why] : idle) {
    const std::string& value = values.at(key);
    if (is_nothing(value)) continue;
    if (given.contains(key)) {
      throw Error(ErrorCode::kInvalidArgument,
                  flag_of(key) + ": has no effect " + why + " (got '" + value + "'); leave it out");
    }
    if (from_file.contains(key) && value != defaults.at(key)) {
      warnings.push_back("configuration file: " + key + " = " + value + " has no effect " + why);
    }
  }
  return warnings;
}

}  // namespace kda::train
