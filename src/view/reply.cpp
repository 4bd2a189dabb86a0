#include "view/reply.h"

#include <charconv>

#include "io/escape.h"
#include "kda/error.h"
#include "view/text.h"

namespace kda::view {

std::string Query::parameter(const std::string& name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::string() : found->second;
}

Reply error_reply(int status, std::string_view message) {
  Reply reply;
  reply.status = status;
  reply.body = "{\"error\": " + json_string(message) + "}";
  return reply;
}

std::int64_t integer_parameter(const Query& query, const std::string& name, std::int64_t fallback,
                               std::int64_t low, std::int64_t high) {
  const std::string text = query.parameter(name);
  if (text.empty()) return fallback;
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, fault] = std::from_chars(text.data(), end, value);
  if (fault != std::errc() || at != end || value < low || value > high) {
    throw Error(ErrorCode::kInvalidArgument, name + ": expected a whole number in [" +
                                                 std::to_string(low) + ", " + std::to_string(high) +
                                                 "], got " + io::escaped(text, 40));
  }
  return value;
}

}  // namespace kda::view
