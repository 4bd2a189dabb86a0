#include "view/expression.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/escape.h"
#include "view/text.h"

namespace kda::view {
namespace {

constexpr std::size_t kMaxCodeBytes = 1000;
constexpr int kMaxDepth = 32;
constexpr int kMaxOperations = 64;

using Integers = std::vector<std::int64_t>;

[[noreturn]] void refuse_code(const std::string& text) { refuse("code: " + text); }

std::int64_t inside(std::int64_t index, std::int64_t size) {
  const std::int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) {
    refuse_code("index " + std::to_string(index) + " is outside an axis of size " +
                std::to_string(size));
  }
  return at;
}

/// One entry of `[...]`: an index, a slice, or the ellipsis.
struct Index {
  std::optional<std::int64_t> start, stop, step;
  bool is_slice = false;
  bool is_ellipsis = false;
};

/// Python's slice.indices() and the length of the range.
Slice resolve(const Index& index, std::int64_t size) {
  if (!index.is_slice) return {inside(*index.start, size), 1, 1, true};
  std::int64_t step = index.step.value_or(1);
  if (step == 0) refuse_code("a slice's step must not be 0");
  // A longer step than the axis takes one element, like this one; products stay small.
  step = std::clamp(step, -std::max<std::int64_t>(size, 1), std::max<std::int64_t>(size, 1));
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const auto bound = [&](const std::optional<std::int64_t>& value, std::int64_t fallback) {
    if (!value) return fallback;
    return std::clamp(*value < 0 ? *value + size : *value, low, high);
  };
  const std::int64_t start = bound(index.start, step > 0 ? low : high);
  const std::int64_t stop = bound(index.stop, step > 0 ? high : low);
  const std::int64_t span = step > 0 ? stop - start : start - stop;
  const std::int64_t width = step > 0 ? step : -step;
  return {start, span <= 0 ? 0 : (span + width - 1) / width, step, false};
}

Array indexed(const Array& array, std::span<const Index> entries) {
  const auto ellipses = std::count_if(entries.begin(), entries.end(),
                                      [](const Index& entry) { return entry.is_ellipsis; });
  if (ellipses > 1) refuse_code("only one ... in an index");
  const std::size_t given = entries.size() - static_cast<std::size_t>(ellipses);
  if (given > array.rank()) {
    refuse_code("too many indices (" + std::to_string(given) + ") for shape " +
                shape_text(array.shape));
  }
  std::vector<Slice> slices;
  const auto whole = [&] { slices.push_back({0, array.shape[slices.size()], 1, false}); };
  for (const Index& entry : entries) {
    if (entry.is_ellipsis) {
      for (std::size_t skipped = array.rank() - given; skipped > 0; --skipped)
        whole();
    } else {
      slices.push_back(resolve(entry, array.shape[slices.size()]));
    }
  }
  while (slices.size() < array.rank())
    whole();
  return sliced(array, slices);
}

Integers reversed_axes(const Array& array) {
  Integers axes(array.rank());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    axes[i] = static_cast<std::int64_t>(axes.size() - 1 - i);
  }
  return axes;
}

Array swapped(const Array& array, std::int64_t first, std::int64_t second) {
  const auto rank = static_cast<std::int64_t>(array.rank());
  Integers axes(array.rank());
  for (std::size_t i = 0; i < axes.size(); ++i)
    axes[i] = static_cast<std::int64_t>(i);
  std::swap(axes[static_cast<std::size_t>(inside(first, rank))],
            axes[static_cast<std::size_t>(inside(second, rank))]);
  return transposed(array, axes);
}

class Parser {
 public:
  Parser(std::string_view text, const Array& tensor) : text_(text), tensor_(tensor) {}

  Viewed all() {
    Viewed value = expression();
    skip_blanks();
    if (at_ != text_.size()) expected("the end or an operation");
    return value;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
      ++at_;
    }
  }

  [[noreturn]] void expected(const std::string& what) const {
    refuse_code("character " + std::to_string(at_ + 1) + ": expected " + what + ", got " +
                (at_ < text_.size() ? io::escaped(text_.substr(at_, 12)) : "the end"));
  }

  bool take(std::string_view token) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  void require(std::string_view token) {
    if (!take(token)) expected("'" + std::string(token) + "'");
  }

  /// A letter may not follow: `tensors` is not `tensor`.
  bool take_word(std::string_view word) {
    skip_blanks();
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with(word)) return false;
    if (rest.size() > word.size()) {
      const char next = rest[word.size()];
      if ((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '_' ||
          (next >= '0' && next <= '9')) {
        return false;
      }
    }
    at_ += word.size();
    return true;
  }

  std::optional<std::int64_t> integer() {
    skip_blanks();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, fault] = std::from_chars(begin, text_.data() + text_.size(), value);
    // The bound keeps sums of an index and a size inside 64 bits.
    constexpr std::int64_t kLimit = std::int64_t{1} << 61;
    if (fault == std::errc::result_out_of_range || value > kLimit || value < -kLimit) {
      expected("an integer below 2^61");
    }
    if (fault != std::errc()) return std::nullopt;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::int64_t required_integer() {
    const auto value = integer();
    if (!value) expected("an integer");
    return *value;
  }

  /// `2, 3` or `(2, 3)` or `[2, 3]`; empty where `close` follows at once.
  Integers integers(std::string_view close) {
    Integers values;
    const std::string_view inner = take("(") ? ")" : take("[") ? "]" : "";
    for (;;) {
      const auto value = integer();
      if (!value) break;
      values.push_back(*value);
      if (!take(",")) break;
    }
    if (!inner.empty()) {
      require(inner);
      take(",");
    }
    require(close);
    if (values.size() > kMaxRank)
      refuse_code("more than " + std::to_string(kMaxRank) + " integers");
    return values;
  }

  Index index() {
    Index entry;
    if (take("...")) {
      entry.is_ellipsis = true;
      return entry;
    }
    entry.start = integer();
    if (!take(":")) {
      if (!entry.start) expected("an index, a slice or '...'");
      return entry;
    }
    entry.is_slice = true;
    entry.stop = integer();
    if (take(":")) entry.step = integer();
    return entry;
  }

  Array index_of(const Array& array) {
    std::vector<Index> entries;
    do {
      if (entries.size() > kMaxRank) refuse_code("too many indices");
      skip_blanks();
      if (!entries.empty() && at_ < text_.size() && text_[at_] == ']') break;
      entries.push_back(index());
    } while (take(","));
    require("]");
    return indexed(array, entries);
  }

  Array transpose_of(const Array& array) {
    const Integers axes = integers(")");
    return transposed(array, axes.empty() ? reversed_axes(array) : axes);
  }

  Array swap_of(const Array& array) {
    const std::int64_t first = required_integer();
    require(",");
    const std::int64_t second = required_integer();
    require(")");
    return swapped(array, first, second);
  }

  Viewed function(Viewed (Parser::*rest)(Viewed)) {
    require("(");
    return (this->*rest)(expression());
  }
  Viewed abs_rest(Viewed value) {
    require(")");
    value.absolute = true;
    return value;
  }
  Viewed transpose_rest(Viewed value) {
    if (take(")")) {
      value.array = transposed(value.array, reversed_axes(value.array));
    } else {
      require(",");
      value.array = transpose_of(value.array);
    }
    return value;
  }
  Viewed reshape_rest(Viewed value) {
    require(",");
    value.array = reshaped(value.array, integers(")"));
    return value;
  }
  Viewed swapaxes_rest(Viewed value) {
    require(",");
    value.array = swap_of(value.array);
    return value;
  }

  Viewed primary() {
    if (take_word("tensor")) return {tensor_, false};
    if (take("(")) {
      Viewed value = expression();
      require(")");
      return value;
    }
    take("np.");
    if (take_word("abs") || take_word("absolute")) return function(&Parser::abs_rest);
    if (take_word("transpose")) return function(&Parser::transpose_rest);
    if (take_word("reshape")) return function(&Parser::reshape_rest);
    if (take_word("swapaxes")) return function(&Parser::swapaxes_rest);
    expected("tensor, abs(), transpose(), reshape() or swapaxes()");
  }

  bool postfix(Viewed& value) {
    if (take("[")) {
      value.array = index_of(value.array);
      return true;
    }
    if (!take(".")) return false;
    if (take_word("T")) {
      value.array = transposed(value.array, reversed_axes(value.array));
    } else if (take_word("transpose")) {
      require("(");
      value.array = transpose_of(value.array);
    } else if (take_word("reshape")) {
      require("(");
      value.array = reshaped(value.array, integers(")"));
    } else if (take_word("swapaxes")) {
      require("(");
      value.array = swap_of(value.array);
    } else {
      expected("T, transpose(), reshape() or swapaxes()");
    }
    return true;
  }

  Viewed expression() {
    if (++depth_ > kMaxDepth)
      refuse_code("nested more than " + std::to_string(kMaxDepth) + " deep");
    Viewed value = primary();
    while (postfix(value)) {
      if (++operations_ > kMaxOperations) {
        refuse_code("more than " + std::to_string(kMaxOperations) + " operations");
      }
    }
    --depth_;
    return value;
  }

  std::string_view text_;
  const Array& tensor_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int operations_ = 0;
};

}  // namespace

Viewed evaluate(std::string_view code, const Array& tensor) {
  if (code.size() > kMaxCodeBytes) {
    refuse_code("expected at most " + std::to_string(kMaxCodeBytes) + " bytes, got " +
                std::to_string(code.size()));
  }
  return Parser(code, tensor).all();
}

}  // namespace kda::view
