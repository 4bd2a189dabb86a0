#include "io/json.h"

#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& reason) {
  throw Error(ErrorCode::kIo, std::string(what) + ": " + reason);
}

/// Builds the value from the parser's events. The library's own builder keeps the last of two equal
/// keys and nests without end; with a callback it also takes quadratic time for many objects in
/// one.
template <class AnyJson>
class Builder final : public nlohmann::json_sax<AnyJson> {
 public:
  Builder(std::string_view what, const JsonLimits& limits) : what_(what), limits_(limits) {}

  AnyJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(std::int64_t v) override { return add(v); }
  bool number_unsigned(std::uint64_t v) override { return add(v); }
  bool number_float(double v, const std::string&) override { return add(v); }
  bool string(std::string& v) override { return add(std::move(v)); }
  bool binary(typename AnyJson::binary_t&) override { return false; }  // not in text
  bool start_object(std::size_t) override { return open(AnyJson::object()); }
  bool start_array(std::size_t) override { return open(AnyJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    AnyJson& object = *open_.back();
    const auto [it, fresh] = object.emplace(name, nullptr);
    if (!fresh) fail(what_, "key " + escaped(name) + " appears twice");
    if (object.size() > limits_.max_keys) {
      fail(what_, "an object has more than " + std::to_string(limits_.max_keys) + " keys");
    }
    value_ = &*it;
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."; the tag says nothing
    // to a reader, and the rest may quote the input.
    std::string_view reason = error.what();
    if (const auto end = reason.find("] "); end != std::string_view::npos) {
      reason.remove_prefix(end + 2);
    }
    fail(what_, "not valid JSON: " + escaped(reason, 300));
  }

 private:
  /// Puts a value where the parser is; returns its place through `placed_`.
  bool add(AnyJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
      placed_ = &root_;
    } else if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      placed_ = &open_.back()->back();
    } else {
      *value_ = std::move(value);
      placed_ = value_;
    }
    return true;
  }
  /// Containers on the stack do not move: nothing is added to a parent while a child is open.
  bool open(AnyJson value) {
    if (open_.size() >= limits_.max_depth) {
      fail(what_, "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    add(std::move(value));
    open_.push_back(placed_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  const JsonLimits& limits_;
  AnyJson root_;
  std::vector<AnyJson*> open_;
  AnyJson* value_ = nullptr;   ///< where the value of the last key goes
  AnyJson* placed_ = nullptr;  ///< the value added last
};

template <class AnyJson>
AnyJson parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail(what, std::to_string(text.size()) + " bytes of JSON, at most " +
                   std::to_string(limits.max_bytes) + " expected");
  }
  Builder<AnyJson> builder(what, limits);
  AnyJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<Json>(text, what, limits);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view what, JsonLimits limits) {
  limits.max_keys = text.size();
  return parse<SortedJson>(text, what, limits);
}

Json read_json_file(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_file(path, limits.max_bytes), escaped(path.string()), limits);
}

void write_json_file(const std::filesystem::path& path, const Json& value) {
  write_file_atomic(path, value.dump(2) + "\n");
}

}  // namespace kda::io
