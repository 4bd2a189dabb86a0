#include "view/page_api.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "io/escape.h"
#include "kda/error.h"
#include "view/metrics.h"
#include "view/reduce.h"
#include "view/text.h"

namespace kda::view {
namespace {

constexpr std::size_t kMaxAxes = 3;

/// Whole numbers between separators; empty text is an empty list.
std::vector<std::int64_t> integers(const std::string& name, const std::string& text,
                                   std::string_view separators = ",") {
  std::vector<std::int64_t> values;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    std::int64_t value = 0;
    const auto [next, fault] = std::from_chars(at, end, value);
    if (fault != std::errc() || (next != end && separators.find(*next) == std::string_view::npos) ||
        next + 1 == end || values.size() == 2 * kMaxRank) {
      refuse(name + ": expected whole numbers, got " + io::escaped(text, 60));
    }
    values.push_back(value);
    at = next == end ? end : next + 1;
  }
  return values;
}

std::vector<std::int64_t> axes_of(const Query& query, std::size_t rank) {
  std::vector<std::int64_t> axes = integers("axes", query.parameter("axes"));
  if (query.parameter("axes").empty()) {
    // The last two: rows and columns.
    for (std::size_t axis = rank > 2 ? rank - 2 : 0; axis < rank; ++axis) {
      axes.push_back(static_cast<std::int64_t>(axis));
    }
  }
  if (axes.size() > kMaxAxes) refuse("axes: expected at most three, got " + shape_text(axes));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const bool inside = axes[i] >= 0 && axes[i] < static_cast<std::int64_t>(rank);
    if (!inside || std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i),
                             axes[i]) != axes.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse("axes: expected different numbers below " + std::to_string(rank) + ", got " +
             shape_text(axes));
    }
  }
  return axes;
}

/// The chosen part of a tensor and how it was chosen.
struct Part {
  std::vector<std::int64_t> axes;
  std::vector<std::int64_t> at;      ///< for each axis of the tensor; 0 on chosen ones
  std::vector<std::int64_t> window;  ///< from, to of each chosen axis
  Array array;
};

Part part_of(const Array& whole, const Query& query) {
  Part part;
  part.axes = axes_of(query, whole.rank());
  part.at = integers("at", query.parameter("at"));
  part.at.resize(std::max(part.at.size(), whole.rank()), 0);
  if (part.at.size() != whole.rank()) {
    refuse("at: expected " + std::to_string(whole.rank()) + " indices, got " +
           std::to_string(part.at.size()));
  }
  const std::vector<std::int64_t> window = integers("window", query.parameter("window"), ",:");
  if (!window.empty() && window.size() != 2 * part.axes.size()) {
    refuse("window: expected FROM:TO for each of the " + std::to_string(part.axes.size()) +
           " axes");
  }
  std::vector<Slice> slices(whole.rank());
  std::vector<std::int64_t> order;  // of the axes that stay, by their number
  for (std::size_t axis = 0; axis < whole.rank(); ++axis) {
    const std::int64_t size = whole.shape[axis];
    const auto chosen =
        std::find(part.axes.begin(), part.axes.end(), static_cast<std::int64_t>(axis));
    if (chosen == part.axes.end()) {
      if (part.at[axis] < 0 || part.at[axis] >= size) {
        refuse("at: axis " + std::to_string(axis) + " has indices 0 to " + std::to_string(size) +
               " (exclusive), got " + std::to_string(part.at[axis]));
      }
      slices[axis] = {part.at[axis], 1, 1, true};
      continue;
    }
    part.at[axis] = 0;
    const auto i = static_cast<std::size_t>(chosen - part.axes.begin());
    const std::int64_t from = window.empty() ? 0 : window[2 * i];
    const std::int64_t to = window.empty() ? size : window[2 * i + 1];
    if (from < 0 || to > size || from > to) {
      refuse("window: expected 0 <= FROM <= TO <= " + std::to_string(size) + ", got " +
             std::to_string(from) + ":" + std::to_string(to));
    }
    slices[axis] = {from, to - from, 1, false};
    order.push_back(static_cast<std::int64_t>(axis));
  }
  for (std::size_t i = 0; i < part.axes.size(); ++i) {
    const std::int64_t size = whole.shape[static_cast<std::size_t>(part.axes[i])];
    part.window.push_back(window.empty() ? 0 : window[2 * i]);
    part.window.push_back(window.empty() ? size : window[2 * i + 1]);
  }
  // Position of each chosen axis among those that stay.
  std::vector<std::int64_t> permutation;
  for (const std::int64_t axis : part.axes) {
    permutation.push_back(std::find(order.begin(), order.end(), axis) - order.begin());
  }
  part.array = transposed(sliced(whole, slices), permutation);
  return part;
}

std::string reduction_text(const Cells& cells) {
  if (!cells.is_reduced()) return "null";
  std::string text = "means of blocks of " + shape_text(cells.block);
  if (std::any_of(cells.skip.begin(), cells.skip.end(), [](std::int64_t s) { return s != 1; })) {
    text += ", every " + shape_text(cells.skip) + "-th element read";
  }
  return json_string(text);
}

std::string window_json(const std::vector<std::int64_t>& window) {
  std::string text = "[";
  for (std::size_t i = 0; i + 1 < window.size(); i += 2) {
    if (i > 0) text += ", ";
    text += shape_text(std::span(window).subspan(i, 2));
  }
  return text + "]";
}

const Trace* trace_of(const Catalog& catalog, const Query& query) {
  const OpenFile* file = catalog.find_file(query.parameter("file"));
  return file == nullptr ? nullptr : file->trace.get();
}

Reply no_file(const Query& query, const char* kind) {
  return error_reply(404, std::string("file: no ") + kind + " " +
                              io::escaped(query.parameter("file")) + " is open");
}

Reply json_reply(std::string body) {
  Reply reply;
  reply.body = std::move(body);
  return reply;
}

std::string tensor_list_json(const Catalog& catalog, const OpenFile& file) {
  std::string text = "[";
  for (const TensorEntry& entry : catalog.tensors()) {
    if (entry.file != &file) continue;
    if (text.size() > 1) text += ", ";
    text += "{\"key\": " + json_string(entry.key) + ", \"name\": " + json_string(entry.name) +
            ", \"dtype\": \"" + std::string(io::name_of(entry.tensor->dtype)) +
            "\", \"shape\": " + shape_text(entry.tensor->shape) +
            ", \"bytes\": " + std::to_string(entry.tensor->data.size()) + "}";
  }
  return text + "]";
}

}  // namespace

Reply page_files(const Catalog& catalog) {
  std::string text = "{\"files\": [";
  for (const OpenFile& file : catalog.files()) {
    if (text.back() != '[') text += ", ";
    text += "{\"label\": " + json_string(file.label) + ", \"kind\": \"" +
            std::string(name_of(file.kind)) + "\"";
    if (file.tensors) {
      text += ", \"metadata\": {";
      for (const auto& [key, value] : file.tensors->metadata()) {
        if (text.back() != '{') text += ", ";
        text += json_string(key) + ": " + json_string(value);
      }
      text += "}, \"tensors\": " + tensor_list_json(catalog, file);
    }
    if (file.trace) text += ", \"nodes\": " + std::to_string(file.trace->num_nodes());
    text += "}";
  }
  return json_reply(text + "]}");
}

Reply page_tensor(const Catalog& catalog, StatisticsCache& statistics, const Query& query) {
  const std::string key = query.parameter("key");
  const TensorEntry* entry = catalog.find_tensor(key);
  if (entry == nullptr) return error_reply(404, "key: no tensor " + io::escaped(key) + " is open");
  const std::int64_t max_cells = integer_parameter(query, "cells", kDefaultCells, 1, kMaxCells);
  const Part part = part_of(array_of(*entry->tensor), query);
  const Cells cells = reduce(part.array, max_cells);
  const bool reduced = cells.is_reduced();
  std::string text =
      "{\"key\": " + json_string(key) + ", \"dtype\": \"" +
      std::string(io::name_of(entry->tensor->dtype)) +
      "\", \"shape\": " + shape_text(entry->tensor->shape) +
      ", \"axes\": " + shape_text(part.axes) + ", \"at\": " + shape_text(part.at) +
      ", \"window\": " + window_json(part.window) + ", \"cells\": " + shape_text(cells.shape) +
      ", \"block\": " + shape_text(cells.block) + ", \"skip\": " + shape_text(cells.skip) +
      ", \"reduced\": " + reduction_text(cells) +
      ", \"mean\": " + nested_json(cells.mean, cells.shape) + ", \"low\": ";
  text += reduced ? nested_json(cells.low, cells.shape) : "null";
  text += ", \"high\": ";
  text += reduced ? nested_json(cells.high, cells.shape) : "null";
  text += ", \"statistics\": " + to_json(statistics.of(*entry->tensor)) + "}";
  return json_reply(std::move(text));
}

Reply page_trace(const Catalog& catalog, const Query& query) {
  const Trace* trace = trace_of(catalog, query);
  return trace == nullptr ? no_file(query, "trace") : json_reply(trace->overview_json());
}

Reply page_graph(const Catalog& catalog, const Query& query) {
  const Trace* trace = trace_of(catalog, query);
  if (trace == nullptr) return no_file(query, "trace");
  return json_reply(trace->graph_json(integer_parameter(query, "phase", 0, 0, INT64_MAX)));
}

Reply page_node(const Catalog& catalog, const Query& query) {
  const Trace* trace = trace_of(catalog, query);
  if (trace == nullptr) return no_file(query, "trace");
  std::string node = trace->node_json(query.parameter("label"));
  if (node.empty()) {
    return error_reply(404, "label: no node " + io::escaped(query.parameter("label")));
  }
  return json_reply(std::move(node));
}

Reply page_metrics(const Catalog& catalog, const Query& query) {
  const OpenFile* file = catalog.find_file(query.parameter("file"));
  if (file == nullptr || file->kind != FileKind::kMetrics) return no_file(query, "metrics");
  return json_reply(metrics_json(file->path));
}

}  // namespace kda::view
