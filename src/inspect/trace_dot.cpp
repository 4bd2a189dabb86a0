#include "inspect/trace_dot.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "inspect/select.h"
#include "inspect/trace_json.h"
#include "io/atomic_file.h"
#include "kda/error.h"

namespace kda::inspect {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string shape_of(const TensorForm& form) {
  std::string out = dtype_text(form.dtype) + "[";
  for (std::size_t i = 0; i < form.shape.size(); ++i)
    out += (i > 0 ? "," : "") + std::to_string(form.shape[i]);
  return out + "]";
}

bool matches(const std::string& word, const Node& node) {
  for (const std::string& pattern : {word, "model." + word, word + ".*", "model." + word + ".*"})
    if (::fnmatch(pattern.c_str(), node.module.c_str(), 0) == 0) return true;
  return ::fnmatch(word.c_str(), node.label.c_str(), 0) == 0 ||
         ::fnmatch(word.c_str(), without_pass(node.label).c_str(), 0) == 0;
}

[[noreturn]] void unknown(const std::string& word, const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    names.insert(without_pass(node.label));
  for (const Module& module : graph.modules)
    names.insert(module.path);
  unknown_name(word, {names.begin(), names.end()});
}

// Indices of the nodes that a list names; every item must name one.
std::set<std::size_t> nodes_of(const Graph& graph, const std::string& list) {
  std::set<std::size_t> chosen;
  for (const std::string& word : words_of(list)) {
    bool found = false;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!matches(word, graph.nodes[i])) continue;
      chosen.insert(i);
      found = true;
    }
    if (!found) unknown(word, graph);
  }
  return chosen;
}

const char* style_of(const Node& node) {
  switch (node.kind) {
    case NodeKind::kInput:
      return "shape=ellipse, style=filled, fillcolor=\"#d9ead3\"";
    case NodeKind::kConstant:
      return "shape=ellipse, style=filled, fillcolor=\"#eeeeee\"";
    case NodeKind::kStage:
      return "shape=box, style=\"filled,rounded\", fillcolor=\"#fff2cc\"";
    case NodeKind::kGradient:
      return "shape=box, style=filled, fillcolor=\"#f4cccc\"";
    case NodeKind::kOperation:
      break;
  }
  bool weights = false;
  for (const NodeInput& input : node.inputs)
    weights = weights || input.node < 0;
  return weights ? "shape=box, style=filled, fillcolor=\"#cfe2f3\""
                 : "shape=box, style=filled, fillcolor=\"#ffffff\"";
}

std::string text_of(const Node& node) {
  std::string text = node.kind == NodeKind::kStage ? node.function : node.label;
  for (const NodeOutput& output : node.outputs) {
    text += "\\n";
    if (!output.name.empty()) text += output.name + " ";
    text += shape_of(output.form);
  }
  return text;
}

// Modules as a tree of clusters: graphviz wants each inside its parent.
struct Cluster {
  std::map<std::string, Cluster> inside;
  std::vector<std::size_t> nodes;
};

class Writer {
 public:
  Writer(const Graph& graph, const DotOptions& options) : graph_(graph) {
    if (!options.only.empty()) {
      drawn_ = nodes_of(graph, options.only);
      return;
    }
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      drawn_.insert(i);
  }

  std::string text() {
    // newrank: dot's older ranking, cluster by cluster, loses edges and fails where a pass runs
    // through a module forth and, for its gradients, back.
    out_ =
        "digraph trace {\n  rankdir=TB;\n  newrank=true;\n  node [fontname=\"Helvetica\", "
        "fontsize=10];\n"
        "  edge [fontname=\"Helvetica\", fontsize=8, color=\"#666666\"];\n";
    Cluster root;
    for (const std::size_t i : drawn_)
      cluster_of(root, graph_.nodes[i]).nodes.push_back(i);
    write(root, "", 1);
    for (const std::size_t i : drawn_)
      write_edges(i);
    return out_ + "}\n";
  }

 private:
  static Cluster& cluster_of(Cluster& root, const Node& node) {
    Cluster* at = &root;
    for (std::size_t begin = 0; begin < node.module.size();) {
      const std::size_t end = std::min(node.module.find('.', begin), node.module.size());
      at = &at->inside[node.module.substr(begin, end - begin)];
      begin = end + 1;
    }
    if (node.kind == NodeKind::kStage) {
      at = &at->inside[node.label.substr(0, node.label.find('/'))];
    }
    return *at;
  }

  void write(const Cluster& cluster, const std::string& path, int depth) {
    const std::string pad(static_cast<std::size_t>(2 * depth), ' ');
    for (const std::size_t i : cluster.nodes) {
      const Node& node = graph_.nodes[i];
      out_ += pad + quoted(node.label) + " [label=\"" + text_of(node) + "\", " + style_of(node) +
              "];\n";
    }
    for (const auto& [name, inner] : cluster.inside) {
      const std::string inner_path = path.empty() ? name : path + "." + name;
      out_ += pad + "subgraph " + quoted("cluster_" + inner_path) + " {\n" + pad +
              "  label=" + quoted(inner_path) +
              "; fontname=\"Helvetica\"; fontsize=11; color=\"#999999\";\n";
      write(inner, inner_path, depth + 1);
      out_ += pad + "}\n";
    }
  }

  void write_edges(std::size_t i) {
    const Node& node = graph_.nodes[i];
    const auto edge = [&](std::int64_t from, const std::string& text, const char* style) {
      if (from < 0 || !drawn_.contains(static_cast<std::size_t>(from))) return;
      out_ += "  " + quoted(graph_.nodes[static_cast<std::size_t>(from)].label) + " -> " +
              quoted(node.label) + " [label=" + quoted(text) + style + "];\n";
    };
    for (const NodeInput& input : node.inputs) {
      edge(input.node, input.argument, "");
      for (const std::int64_t writer : input.writers)
        edge(writer, "written", ", style=dashed");
    }
    if (node.kind == NodeKind::kStage && node.inputs.empty()) {
      edge(node.stage_of, "opened", ", style=dotted");
    }
  }

  const Graph& graph_;
  std::set<std::size_t> drawn_;
  std::string out_;
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

[[noreturn]] void system_error(const char* what) {
  throw Error(ErrorCode::kIo, std::string(what) + ": " + std::strerror(errno));
}

// Runs a program with `input` on its standard input and returns what it prints; `code` is its exit
// status, 127 when it could not be started. The input is a file: with two pipes either side could
// wait for the other.
std::string run_filter(const char* const* argv, const std::string& input, int& code) {
  const File file(std::tmpfile());
  if (!file || std::fwrite(input.data(), 1, input.size(), file.get()) != input.size() ||
      std::fflush(file.get()) != 0 || ::lseek(::fileno(file.get()), 0, SEEK_SET) != 0) {
    system_error("temporary file");
  }
  std::array<int, 2> from{};
  if (::pipe2(from.data(), O_CLOEXEC) != 0) system_error("pipe");
  const pid_t child = ::fork();
  if (child < 0) system_error("fork");
  if (child == 0) {
    ::dup2(::fileno(file.get()), STDIN_FILENO);
    ::dup2(from[1], STDOUT_FILENO);
    // Its complaints are a line for every edge of the picture.
    if (const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nothing >= 0) {
      ::dup2(nothing, STDERR_FILENO);
    }
    ::execvp(argv[0], const_cast<char* const*>(argv));
    ::_exit(127);
  }
  ::close(from[1]);
  std::string out;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t got = ::read(from[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
  ::close(from[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

}  // namespace

std::string to_dot(const Graph& graph, const DotOptions& options) {
  Writer writer(graph, options);
  return writer.text();
}

void draw_svg(const std::string& dot, const std::filesystem::path& path) {
  const std::array<const char*, 3> argv{"dot", "-Tsvg", nullptr};
  int code = 0;
  const std::string svg = run_filter(argv.data(), dot, code);
  if (code == 127) {
    throw Error(ErrorCode::kUnsupported,
                "svg: drawing needs Graphviz' program dot; install the package graphviz, or write "
                "the graph as DOT text");
  }
  if (code != 0 || svg.empty()) {
    throw Error(ErrorCode::kIo, "svg: dot failed to lay out the graph (exit code " +
                                    std::to_string(code) +
                                    "); draw a part of it with --only, or write it as DOT text "
                                    "with --dot and lay it out with another program");
  }
  io::write_file_atomic(path, svg);
}

}  // namespace kda::inspect
