/// A request and its answer without any network: what the endpoints see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kda::view {

struct Query {
  std::string method;
  std::string path;  ///< decoded, without the query
  std::multimap<std::string, std::string> parameters;
  // Headers that decide whether the request is answered at all; absent ones are empty.
  std::string host;
  std::string origin;
  std::string fetch_site;
  std::string fetch_mode;

  /// The first value, "" when absent.
  std::string parameter(const std::string& name) const;
};

struct Reply {
  int status = 200;
  std::string type = "application/json; charset=utf-8";
  std::string body;
  std::string_view asset;                     ///< instead of `body`: bytes of the program
  std::optional<std::filesystem::path> file;  ///< instead of `body`: the content of a file
};

/// {"error": message} with this status.
Reply error_reply(int status, std::string_view message);

/// The parameter as a whole number, `fallback` when absent. Error(kInvalidArgument) otherwise or
/// outside [low, high].
std::int64_t integer_parameter(const Query& query, const std::string& name, std::int64_t fallback,
                               std::int64_t low, std::int64_t high);

}  // namespace kda::view
