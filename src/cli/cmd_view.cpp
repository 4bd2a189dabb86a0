#include <poll.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/number_option.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "view/http_server.h"
#include "view/listener.h"
#include "view/viewer.h"

namespace kda::cli {
namespace {

struct ViewCommand {
  std::vector<std::string> files;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string normalization = "clip";
  view::ViewerOptions options;
};

/// RUN/best and RUN/last are names of checkpoints, as everywhere in this program, not folders.
std::filesystem::path path_of(const std::string& name) {
  const std::filesystem::path path(name);
  const bool alias = path.filename() == "best" || path.filename() == "last";
  if (!alias || std::filesystem::exists(path)) return path;
  return train::resolve_checkpoint(path).path;
}

int run_view(ViewCommand& command) {
  command.options.tensorlens.rule.how = view::normalization_from(command.normalization);
  // The port first: it is the quicker thing to be told about than a large file.
  const view::Listener listener(command.host, command.port);
  command.options.guard.loopback_only = listener.is_loopback();
  if (const auto name = view::host_of(command.host)) command.options.guard.names.push_back(*name);
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : command.files)
    paths.push_back(path_of(name));
  const view::Viewer viewer(paths, command.options);
  const train::SignalScope signals;
  const view::HttpServer server(listener,
                                [&](const view::Query& query) { return viewer.respond(query); });
  if (!listener.is_loopback()) {
    print_warning("view", "every machine that reaches " + command.host +
                              " can read these files: there is no password");
  }
  std::printf("%s\n", listener.url().c_str());
  flush_output();
  std::fputs("kda view: serving until Ctrl-C\n", stderr);
  // A signal ends the wait at once; the period only covers one that comes just before it.
  while (train::stop_signal() == 0)
    ::poll(nullptr, 0, 500);
  throw train::Interrupted(train::stop_signal());
}

}  // namespace

void add_view(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "view", "Show traces, tensors, checkpoints and runs in a browser",
      "  kda view trace.json tensors.safetensors\n"
      "  kda view runs/first                          # its curves and its newest checkpoint\n"
      "  kda view runs/first/best model.safetensors --port 0\n"
      "  kda view tensors.safetensors --normalization minmax    # for clients of TensorLens\n"
      "  ssh -L 8000:localhost:8000 gpu kda view runs/big       # from another machine\n"
      "\n"
      "FILE: a trace or tensors of kda trace and kda extract, a safetensors file or its index, a\n"
      "checkpoint's folder, a run's folder or its metrics.jsonl. Prints the address and serves "
      "until\n"
      "Ctrl-C. Only this machine can connect; nothing can be written; no other file is ever read.");
  auto command = std::make_shared<ViewCommand>();
  verb->add_option("FILE", command->files, "What to show")
      ->type_name("")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_whole(verb, "--port", command->port, {0, 65535}, "Port; 0 = any that is free");
  verb->add_option("--host", command->host,
                   "Address to listen on; 0.0.0.0 lets other machines read the files")
      ->type_name("ADDRESS")
      ->capture_default_str();
  verb->add_option("--allow-host", command->options.guard.names,
                   "Further name by which browsers may call this server (repeatable)")
      ->type_name("NAME")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  view::TensorLensOptions& lens = command->options.tensorlens;
  verb->add_option("--normalization", command->normalization,
                   "For clients of TensorLens: clip, minmax, zscore or none")
      ->type_name("RULE")
      ->capture_default_str();
  add_real(verb, "--clip-low", lens.rule.low, "Lower end of clip");
  add_real(verb, "--clip-high", lens.rule.high, "Upper end of clip");
  add_whole(verb, "--max-points", lens.max_points, {1, 10'000'000},
            "For clients of TensorLens: elements of one reply; of more, every k-th is sent");
  on_run(verb, [command] { return run_view(*command); });
}

}  // namespace kda::cli
