#include "view/trace.h"

#include <algorithm>
#include <utility>

#include "io/escape.h"
#include "io/mapped_file.h"
#include "kda/error.h"
#include "view/text.h"

namespace kda::view {
namespace {

using io::SortedJson;

constexpr io::JsonLimits kLimits{.max_depth = 64, .max_bytes = std::size_t{256} << 20};

/// Fails with `<file>: not a kda trace: <where>: expected ...`.
class Checker {
 public:
  explicit Checker(std::string what) : what_(std::move(what)) {}

  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(ErrorCode::kIo, what_ + ": not a trace that can be shown: " + reason);
  }
  const SortedJson& member(const SortedJson& object, const std::string& where,
                           const char* key) const {
    if (!object.is_object()) refuse(where + ": expected an object");
    const auto found = object.find(key);
    if (found == object.end()) refuse(where + "." + key + " is missing");
    return *found;
  }
  const SortedJson& list(const SortedJson& object, const std::string& where,
                         const char* key) const {
    const SortedJson& value = member(object, where, key);
    if (!value.is_array()) refuse(where + "." + key + ": expected a list");
    return value;
  }
  const std::string& text(const SortedJson& object, const std::string& where,
                          const char* key) const {
    const SortedJson& value = member(object, where, key);
    if (!value.is_string()) refuse(where + "." + key + ": expected text");
    return value.get_ref<const std::string&>();
  }
  std::uint64_t index(const SortedJson& object, const std::string& where, const char* key,
                      std::uint64_t end) const {
    const SortedJson& value = member(object, where, key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= end) {
      refuse(where + "." + key + ": expected a whole number below " + std::to_string(end));
    }
    return value.get<std::uint64_t>();
  }
  void texts(const SortedJson& object, const std::string& where, const char* key) const {
    for (const SortedJson& value : list(object, where, key)) {
      if (!value.is_string()) refuse(where + "." + key + ": expected a list of texts");
    }
  }

 private:
  std::string what_;
};

std::string dumped(const SortedJson& value) {
  return value.dump(-1, ' ', false, SortedJson::error_handler_t::replace);
}

std::string_view text_of(const std::filesystem::path& path, const io::MappedFile& file) {
  // The parser's limit again, with the name that a person gave.
  if (file.bytes().size() > kLimits.max_bytes) {
    throw Error(ErrorCode::kIo, io::escaped(path.string()) + ": " +
                                    std::to_string(file.bytes().size()) + " bytes, at most " +
                                    std::to_string(kLimits.max_bytes));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// A list of JSON values written one after another.
class Column {
 public:
  void add(std::string_view json) {
    if (!text_.empty()) text_ += ',';
    text_ += json;
  }
  std::string json() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

const SortedJson* first_output(const SortedJson& node) {
  const auto outputs = node.find("outputs");
  return outputs == node.end() || !outputs->is_array() || outputs->empty() ||
                 !outputs->front().is_object()
             ? nullptr
             : &outputs->front();
}

std::string field_or_null(const SortedJson* object, const char* key) {
  if (object == nullptr) return "null";
  const auto found = object->find(key);
  return found == object->end() ? "null" : dumped(*found);
}

}  // namespace

Trace::Trace(std::string_view text, std::string_view what)
    : document_(io::parse_sorted_json(text, what, kLimits)) {
  check(std::string(what));
}

Trace::Trace(const std::filesystem::path& path) {
  const io::MappedFile file(path);
  const std::string what = io::escaped(path.string());
  document_ = io::parse_sorted_json(text_of(path, file), what, kLimits);
  check(what);
}

void Trace::check(const std::string& what) {
  const Checker c(what);
  if (c.text(document_, "the file", "format") != "kda-trace") {
    c.refuse("format: expected \"kda-trace\", got " +
             io::escaped(document_["format"].get_ref<const std::string&>()));
  }
  const SortedJson& version = c.member(document_, "the file", "version");
  if (!version.is_number_unsigned() || version.get<std::uint64_t>() != 1) {
    c.refuse("version: expected 1, got " + io::escaped(dumped(version), 40));
  }
  for (const SortedJson& token : c.list(document_, "the file", "tokens")) {
    c.text(token, "tokens", "text");
  }
  const SortedJson& nodes = c.list(document_, "the file", "nodes");
  const SortedJson& phases = c.list(document_, "the file", "phases");
  std::uint64_t phase_number = 0;
  for (const SortedJson& phase : phases) {
    const std::string where = "phases[" + std::to_string(phase_number++) + "]";
    c.text(phase, where, "kind");
    const std::uint64_t last = c.index(phase, where, "last_node", nodes.size() + 1);
    c.index(phase, where, "first_node", last + 1);
  }
  std::map<std::string, bool, std::less<>> modules;
  for (const SortedJson& module : c.list(document_, "the file", "modules")) {
    const std::string& path = c.text(module, "modules", "path");
    const std::string where = "module " + io::escaped(path);
    const std::string& parent = c.text(module, where, "parent");
    c.text(module, where, "kind");
    // Parents first: that also rules out circles, which would never end on the page.
    if (!parent.empty() && !modules.contains(parent)) {
      c.refuse(where + ".parent: " + io::escaped(parent) + " does not come before it");
    }
    if (!modules.try_emplace(path).second) c.refuse(where + " occurs twice");
  }
  for (const SortedJson& node : nodes) {
    const std::string& label =
        c.text(node, "nodes[" + std::to_string(index_of_.size()) + "]", "label");
    const std::string where = "node " + io::escaped(label);
    c.text(node, where, "function");
    c.text(node, where, "kind");
    c.index(node, where, "phase", phases.size());
    c.texts(node, where, "parents");
    const std::string& module = c.text(node, where, "module");
    if (!module.empty() && !modules.contains(module)) {
      c.refuse(where + ".module: " + io::escaped(module) + " is not in the list of modules");
    }
    const SortedJson& stage_of = c.member(node, where, "stage_of");
    if (!stage_of.is_null() && !stage_of.is_string()) {
      c.refuse(where + ".stage_of: expected a label or null");
    }
    if (!index_of_.try_emplace(label, index_of_.size()).second) {
      c.refuse(where + " occurs twice");
    }
  }
  for (const SortedJson& node : nodes) {
    const auto* owner = node["stage_of"].get_ptr<const std::string*>();
    if (owner == nullptr) continue;
    const auto found = index_of_.find(*owner);
    if (found == index_of_.end() || !nodes[found->second]["stage_of"].is_null()) {
      c.refuse("node " + io::escaped(node["label"].get_ref<const std::string&>()) +
               ".stage_of: expected the label of an operation that is no stage");
    }
  }
}

std::string Trace::overview_json() const {
  std::string text = "{";
  for (const char* key :
       {"run", "model", "tokens", "phases", "modules", "results", "validation", "totals"}) {
    if (text.size() > 1) text += ", ";
    text += "\"" + std::string(key) + "\": " + field_or_null(&document_, key);
  }
  return text + "}";
}

std::string Trace::graph_json(std::int64_t phase) const {
  const SortedJson& phases = document_["phases"];
  if (phase < 0 || phase >= static_cast<std::int64_t>(phases.size())) {
    throw Error(ErrorCode::kInvalidArgument, "phase: expected 0 to " +
                                                 std::to_string(phases.size()) +
                                                 " (exclusive), got " + std::to_string(phase));
  }
  // By the nodes' own field: stages stand behind the phases' ranges.
  const SortedJson& nodes = document_["nodes"];
  std::vector<std::size_t> chosen;
  std::vector<std::int64_t> place(nodes.size(), -1);
  std::size_t total = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]["phase"].get<std::int64_t>() != phase) continue;
    if (++total > kMaxGraphNodes) continue;
    place[i] = static_cast<std::int64_t>(chosen.size());
    chosen.push_back(i);
  }
  const auto index_in_reply = [&](const std::string& name) {
    const auto found = index_of_.find(name);
    return found == index_of_.end() ? std::int64_t{-1} : place[found->second];
  };
  Column label, function, kind, module, parents, stage_of, shape, dtype, duration, flops;
  for (const std::size_t i : chosen) {
    const SortedJson& node = nodes[i];
    label.add(dumped(node["label"]));
    function.add(dumped(node["function"]));
    kind.add(dumped(node["kind"]));
    module.add(dumped(node["module"]));
    Column indices;
    for (const SortedJson& parent : node["parents"]) {
      const std::int64_t at = index_in_reply(parent.get_ref<const std::string&>());
      if (at >= 0) indices.add(std::to_string(at));
    }
    parents.add(indices.json());
    const SortedJson& owner = node["stage_of"];
    stage_of.add(std::to_string(
        owner.is_string() ? index_in_reply(owner.get_ref<const std::string&>()) : -1));
    shape.add(field_or_null(first_output(node), "shape"));
    dtype.add(field_or_null(first_output(node), "dtype"));
    duration.add(field_or_null(&node, "duration_ns"));
    flops.add(field_or_null(&node, "flops"));
  }
  const std::string reduced = chosen.size() == total
                                  ? "null"
                                  : json_string("the first " + std::to_string(chosen.size()) +
                                                " of " + std::to_string(total) + " operations");
  return "{\"phase\": " + std::to_string(phase) + ", \"label\": " + label.json() +
         ", \"function\": " + function.json() + ", \"kind\": " + kind.json() +
         ", \"module\": " + module.json() + ", \"parents\": " + parents.json() +
         ", \"stage_of\": " + stage_of.json() + ", \"shape\": " + shape.json() +
         ", \"dtype\": " + dtype.json() + ", \"duration_ns\": " + duration.json() +
         ", \"flops\": " + flops.json() + ", \"reduced\": " + reduced + "}";
}

std::string Trace::node_json(std::string_view label) const {
  const auto found = index_of_.find(label);
  return found == index_of_.end() ? "" : dumped(document_["nodes"][found->second]);
}

}  // namespace kda::view
