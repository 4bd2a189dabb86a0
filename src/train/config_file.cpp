#include "train/config_file.h"

#include <type_traits>
#include <utility>
#include <vector>

// Errors as values: what a file may get wrong is reported by us, with the file's name.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "io/atomic_file.h"
#include "io/json.h"
#include "kda/error.h"

namespace kda::train {
namespace {

[[noreturn]] void refuse_file(const std::string& source, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, source + ": " + text);
}

std::string place(const std::string& source, const toml::source_region& region) {
  return source + ":" + std::to_string(region.begin.line);
}

/// A field's value; nested tables and dates have no place in the options.
io::Json json_of_node(const toml::node& node, const std::string& source, const std::string& key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* list = node.as_array()) {
    io::Json values = io::Json::array();
    for (const toml::node& item : *list)
      values.push_back(json_of_node(item, source, key));
    return values;
  }
  refuse_file(place(source, node.source()),
              key + ": expected text, a number, true or false, or a list of texts");
}

io::Json json_of_table(const toml::table& table, const std::string& source) {
  io::Json json = io::Json::object();
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    json[name] = json_of_node(node, source, name);
  }
  return json;
}

/// The table of the verb, or the whole file when it is flat. Other verbs' tables are left alone.
io::Json options_of(const toml::table& file, Task task, const std::string& source) {
  const toml::node* section = file.get(name_of(task));
  const Task other = task == Task::kSft ? Task::kPretrain : Task::kSft;
  if (section == nullptr && !file.contains(name_of(other))) return json_of_table(file, source);
  io::Json json = io::Json::object();
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    if (!node.is_table() || (name != name_of(task) && name != name_of(other))) {
      refuse_file(place(source, node.source()), "unknown key '" + name + "'; expected [" +
                                                    name_of(task) + "] and nothing beside it");
    }
    if (name == name_of(task)) json = json_of_table(*node.as_table(), source);
  }
  if (section == nullptr) refuse_file(source, std::string("no [") + name_of(task) + "] in it");
  return json;
}

/// Counts and periods as people write them become what the JSON form holds: whole numbers and
/// texts with a unit.
void resolve_units(io::Json& json, const std::string& source) {
  TrainOptions known;
  for_each_field(known, [&](const FieldInfo& info, auto& field) {
    const auto at = json.find(info.key);
    if (at == json.end()) return;
    using Field = std::remove_reference_t<decltype(field)>;
    const std::string name = source + ": " + info.key;
    if constexpr (std::is_same_v<Field, Count>) {
      if (!at->is_string()) return;
      parse_text(at->template get<std::string>(), name, field);
      *at = field.value;
    } else if constexpr (std::is_same_v<Field, Period>) {
      if (!at->is_number_integer()) return;
      parse_text(std::to_string(at->template get<std::int64_t>()), name, field);
      *at = to_text(field);
    }
  });
}

io::Json with_defaults(Task task, const io::Json& given) {
  TrainOptions defaults = task == Task::kSft ? sft_defaults() : TrainOptions{};
  io::Json json = io::parse_json(options_to_json(defaults), "options");
  for (const auto& item : given.items())
    json[item.key()] = item.value();
  return json;
}

io::Json read_json_options(const std::filesystem::path& path) {
  const io::Json json = io::read_json_file(path);
  if (!json.is_object()) refuse_file(path.string(), "expected an object");
  const auto section = json.find("train");
  return section != json.end() && section->is_object() ? *section : json;
}

io::Json read_toml_options(const std::filesystem::path& path, Task task) {
  const std::string text = io::read_file(path);
  const toml::parse_result parsed = toml::parse(text, path.string());
  if (!parsed) {
    refuse_file(place(path.string(), parsed.error().source()),
                std::string(parsed.error().description()));
  }
  io::Json json = options_of(parsed.table(), task, path.string());
  resolve_units(json, path.string());
  return json;
}

std::string toml_value(const std::string& text) {
  // The escapes of JSON are a subset of those of TOML's basic strings.
  return io::Json(text).dump();
}

}  // namespace

OptionsFile read_options_file(const std::filesystem::path& path, Task task) {
  const bool is_json = path.extension() == ".json";
  const io::Json given = is_json ? read_json_options(path) : read_toml_options(path, task);
  OptionsFile file;
  file.options = options_from_json(with_defaults(task, given).dump(), path.string());
  if (const Task theirs = file.options.task; theirs != task) {
    refuse_file(path.string(), std::string("task: expected ") + name_of(task) + ", got " +
                                   name_of(theirs) + "; it is for `kda " + name_of(theirs) + "`");
  }
  for (const auto& item : given.items())
    file.keys.insert(item.key());
  return file;
}

std::string options_to_toml(const TrainOptions& options) {
  std::string text = std::string("[") + name_of(options.task) + "]\n";
  std::string group;
  for_each_field(options, [&](const FieldInfo& info, const auto& field) {
    if (!info.belongs_to(options.task)) return;
    if (group != info.group) {
      group = info.group;
      text += "\n# " + group + "\n";
    }
    text += std::string(info.key) + " = ";
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      text += toml_value(field);
    } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      text += "[";
      for (std::size_t i = 0; i < field.size(); ++i)
        text += (i > 0 ? ", " : "") + toml_value(field[i]);
      text += "]";
    } else if constexpr (std::is_same_v<Field, Period> || std::is_same_v<Field, NonFinitePolicy>) {
      text += toml_value(to_text(field));
    } else if constexpr (std::is_same_v<Field, double>) {
      const std::string number = to_text(field);
      text += number.find_first_of(".e") == std::string::npos ? number + ".0" : number;
    } else {
      text += to_text(field);
    }
    text += "\n";
  });
  return text;
}

}  // namespace kda::train
