#include "view/metrics.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "io/escape.h"
#include "io/jsonl_log.h"
#include "kda/error.h"
#include "view/reduce.h"
#include "view/text.h"

namespace kda::view {
namespace {

constexpr std::uintmax_t kMaxMetricsBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMaxSamples = 20;

struct Series {
  std::string kind;
  std::vector<double> x;
  std::vector<double> y;
};

/// Logs write NaN and infinities as text; on a curve they are gaps.
bool number_of(const io::Json& value, double& number) {
  if (value.is_number()) {
    number = value.get<double>();
    return true;
  }
  const auto* text = value.get_ptr<const std::string*>();
  number = std::numeric_limits<double>::quiet_NaN();
  return text != nullptr && (*text == "nan" || *text == "inf" || *text == "-inf");
}

Cells joined(const std::vector<double>& values) {
  Array array;
  array.dtype = io::StDtype::kF64;
  array.data = std::as_bytes(std::span(values)).data();
  array.shape = {static_cast<std::int64_t>(values.size())};
  array.strides = {1};
  return reduce(array, kMaxCurvePoints);
}

std::string to_json(const std::string& name, const Series& series) {
  const Cells y = joined(series.y);
  const Cells x = joined(series.x);
  const bool reduced = y.is_reduced();
  std::string text = "{\"name\": " + json_string(name) + ", \"kind\": " + json_string(series.kind) +
                     ", \"points\": " + std::to_string(series.y.size()) +
                     ", \"block\": " + std::to_string(y.block[0]) +
                     ", \"x\": " + nested_json(x.high, x.shape) +
                     ", \"y\": " + nested_json(y.mean, y.shape) + ", \"low\": ";
  text += reduced ? nested_json(y.low, y.shape) : "null";
  text += ", \"high\": ";
  text += reduced ? nested_json(y.high, y.shape) : "null";
  return text + "}";
}

/// What an empty page says; null where there is something to show.
std::string note_json(std::size_t records, bool has_points) {
  if (has_points) return "null";
  if (records == 0) return "\"no points yet: no whole line in the log\"";
  return "\"no points yet: none of " + std::to_string(records) +
         " records has a step and a number\"";
}

std::string text_or(const io::Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string metrics_json(const std::filesystem::path& path) {
  std::error_code fault;
  const std::uintmax_t bytes = std::filesystem::file_size(path, fault);
  if (!fault && bytes > kMaxMetricsBytes) {
    throw Error(ErrorCode::kIo, io::escaped(path.string()) + ": " + std::to_string(bytes) +
                                    " bytes, at most " + std::to_string(kMaxMetricsBytes));
  }
  const std::vector<io::Json> records = io::read_jsonl(path);
  std::map<std::string, Series> all;
  std::vector<std::string> samples;
  for (const io::Json& record : records) {
    double step = 0;
    const auto at = record.find("step");
    if (at == record.end() || !number_of(*at, step)) continue;
    const std::string kind = text_or(record, "kind");
    if (kind == "sample") {
      samples.push_back(
          "{\"step\": " + std::to_string(static_cast<std::int64_t>(std::clamp(step, -1e15, 1e15))) +
          ", \"prompt\": " + json_string(text_or(record, "prompt")) +
          ", \"text\": " + json_string(text_or(record, "text")) + "}");
    }
    for (const auto& [field, value] : record.items()) {
      double number = 0;
      if (field == "step" || !number_of(value, number)) continue;
      Series& series = all[(kind.empty() ? "record" : kind) + "." + field];
      series.kind = kind;
      series.x.push_back(step);
      series.y.push_back(number);
    }
  }
  std::string text = "{\"records\": " + std::to_string(records.size()) +
                     ", \"note\": " + note_json(records.size(), !all.empty() || !samples.empty()) +
                     ", \"series\": [";
  for (const auto& [name, series] : all) {
    if (text.back() != '[') text += ", ";
    text += to_json(name, series);
  }
  text += "], \"samples\": [";
  const std::size_t first = samples.size() - std::min(samples.size(), kMaxSamples);
  for (std::size_t i = first; i < samples.size(); ++i) {
    if (i > first) text += ", ";
    text += samples[i];
  }
  return text + "]}";
}

}  // namespace kda::view
