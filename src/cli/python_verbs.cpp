#include "cli/python_verbs.h"

#include <string>
#include <utility>

namespace kda::cli {
namespace {

using Options = std::vector<CompletionOption>;

CompletionOption flag(const std::string& name, const std::string& about) {
  return {{name}, about, false, false, {}};
}
CompletionOption value(const std::string& name, const std::string& about) {
  return {{name}, about, true, false, {}};
}
CompletionOption path(const std::string& name, const std::string& about) {
  return {{name}, about, true, true, {}};
}
CompletionOption word(const std::string& name, const std::string& about,
                      std::vector<std::string> choices) {
  return {{name}, about, true, false, std::move(choices)};
}

CompletionVerb verb(const std::string& at, const std::string& about, Options options) {
  options.insert(options.begin(), {{"-h", "--help"}, "Print the help", false, false, {}});
  return {at, about, {}, std::move(options)};
}

/// A dashboard: `more` are the options of a service.
CompletionVerb dashboard(const std::string& name, const std::string& about,
                         const Options& more = {}) {
  Options options{
      flag("--follow", "Go on until the run is complete"),
      path("--out", "Where to write"),
      value("--interval", "With --follow: seconds between two looks"),
  };
  options.insert(options.end(), more.begin(), more.end());
  return verb("/monitor/" + name, about, options);
}

Options service(std::vector<std::string> modes) {
  return {
      word("--mode", "Where the run goes", std::move(modes)),
      value("--project", "Project there"),
      value("--name", "Name there"),
      value("--workspace", "User or organisation"),
  };
}

}  // namespace

std::vector<CompletionVerb> python_verbs() {
  return {
      verb("/data/build", "",
           {word("--preset", "Ready recipe", {"debian-small", "debian-full", "tiny"}),
            path("--input", "Your own files or folders"), path("--out", "Output folder"),
            path("--cache", "Downloaded packages and lists"), value("--jobs", "Worker processes"),
            value("--text-column", "Field that holds the text"),
            word("--lang", "Language of --input documents", {"auto", "zh", "en"}),
            flag("--to-simplified", "Convert traditional Chinese in --input to simplified"),
            value("--prose-weight", "Write prose pairs N times into the SFT file"),
            flag("--allow-missing-eval", "Go on with fewer frozen evaluation pairs"),
            flag("--refresh", "Fetch the package lists again"),
            flag("--quiet", "No progress lines, no summary")}),
      verb("/data/verify", "", {}),
      verb("/data/floors", "", {value("--set", "Evaluation sets in DIR/eval")}),
      verb("/export-flores", "",
           {path("--from", "Your copy of FLORES"), path("--out", "Folder to write"),
            word("--split", "Which parts", {"dev", "devtest"}),
            value("--password", "Of a zip archive that has one"),
            flag("--allow-partial", "Go on when a part lacks sentences")}),
      verb("/monitor", "", {}),
      dashboard("tensorboard", "An event file for TensorBoard"),
      dashboard("swanlab", "SwanLab, online or offline",
                service({"online", "cloud", "offline", "local", "disabled"})),
      dashboard("wandb", "Weights & Biases, online or offline",
                service({"online", "run", "offline", "dryrun", "disabled"})),
      verb("/monitor/ping", "Is SwanLab there? versions, GPUs", {value("--host", "Its API")}),
      verb("/report", "",
           {path("--out", "Page to write"), path("--eval", "More reports of kda eval mt"),
            value("--title", "Title of the page")}),
  };
}

}  // namespace kda::cli
