#include "view/tensorlens_api.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "io/escape.h"
#include "kda/error.h"
#include "view/expression.h"
#include "view/nested.h"
#include "view/text.h"

namespace kda::view {
namespace {

[[noreturn]] void bad_range(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument,
              "range: expected LOW,HIGH, two numbers, got " + io::escaped(text, 40));
}

Int8Rule rule_of(const Query& query, Int8Rule rule) {
  const std::string name = query.parameter("normalization");
  if (!name.empty()) rule.how = normalization_from(name);
  const std::string range = query.parameter("range");
  if (!range.empty()) {
    const char* end = range.data() + range.size();
    const auto low = std::from_chars(range.data(), end, rule.low);
    if (low.ec != std::errc() || low.ptr == end || *low.ptr != ',') bad_range(range);
    const auto high = std::from_chars(low.ptr + 1, end, rule.high);
    if (high.ec != std::errc() || high.ptr != end) bad_range(range);
  }
  check(rule);
  return rule;
}

/// The elements of `view` as 8-bit numbers, nested.
std::string data_json(const Viewed& view, const Int8Map& map) {
  const Array& array = view.array;
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(array.num_elements()));
  std::vector<double> line;
  for_each_line(array, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
    line.resize(static_cast<std::size_t>(count));
    read_elements(array, offset, stride, line);
    for (const double value : line) {
      const std::int64_t mapped = map(value);
      values.push_back(view.absolute ? std::abs(mapped) : mapped);
    }
  });
  std::string text;
  text.reserve(values.size() * 5);
  std::size_t at = 0;
  append_nested(text, array.shape, [&](std::string& to) { append_number(to, values[at++]); });
  return text;
}

}  // namespace

Reply tensorlens_config(const TensorLensOptions& options) {
  Reply reply;
  // The files do not change, so that nothing is gained by asking often.
  reply.body = "{\"status\": \"ok\", \"max_points\": " + std::to_string(options.max_points) +
               ", \"point_size\": 6.0, \"refresh_interval\": 10000, \"disable_transforms\": false}";
  return reply;
}

Reply tensorlens_list(const Catalog& catalog) {
  Reply reply;
  reply.body =
      "{\"count\": " + std::to_string(catalog.tensors().size()) + ", \"available_tensors\": [";
  for (const TensorEntry& entry : catalog.tensors()) {
    if (reply.body.back() != '[') reply.body += ", ";
    const std::string key = json_string(entry.key);
    reply.body += "{\"key\": " + key + ", \"name\": " + key +
                  ", \"shape\": " + shape_text(entry.tensor->shape) + "}";
  }
  reply.body += "]}";
  return reply;
}

Reply tensorlens_get(const Catalog& catalog, const TensorLensOptions& options,
                     StatisticsCache& statistics, const Query& query) {
  const std::string key = query.parameter("tensor_key");
  if (key.empty()) return error_reply(400, "Missing required parameter: tensor_key");
  const TensorEntry* entry = catalog.find_tensor(key);
  if (entry == nullptr) return error_reply(404, "Tensor '" + key + "' not found");
  const Int8Rule rule = rule_of(query, options.rule);
  const Array whole = array_of(*entry->tensor);
  const std::string code = query.parameter("code");
  Viewed view = code.empty() ? Viewed{whole, false} : evaluate(code, whole);
  std::vector<std::int64_t> steps;
  const std::vector<std::int64_t> full_shape = view.array.shape;
  view.array = sampled(view.array, options.max_points, steps);
  const Int8Map map(rule, entry->tensor->dtype, statistics.of(*entry->tensor));

  Reply reply;
  reply.body = "{\"tensor_key\": " + json_string(key) +
               ", \"dims\": " + std::to_string(view.array.rank()) +
               ", \"shape\": " + shape_text(view.array.shape) + ", \"reduced\": ";
  if (view.array.shape == full_shape) {
    reply.body += "null";
  } else {
    reply.body +=
        "{\"from_shape\": " + shape_text(full_shape) + ", \"every\": " + shape_text(steps) + "}";
  }
  reply.body += ", \"data\": " + data_json(view, map) + "}";
  return reply;
}

}  // namespace kda::view
