#include "view/request_guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "io/escape.h"

namespace kda::view {
namespace {

bool is_ip_address(const std::string& host) {
  in6_addr ignored;
  return ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_own_name(const std::string& host, const GuardOptions& options) {
  if (is_loopback(host)) return true;
  if (!options.loopback_only && is_ip_address(host)) return true;
  return std::find(options.names.begin(), options.names.end(), host) != options.names.end();
}

}  // namespace

std::optional<std::string> host_of(std::string_view text) {
  std::string_view host = text;
  std::string_view rest;
  if (text.starts_with("[")) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (host.empty() || host.size() > 253) return std::nullopt;
  if (!rest.empty() && (rest[0] != ':' || !is_port(rest.substr(1)))) return std::nullopt;
  std::string lower(host);
  for (char& c : lower) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_' || c == ':';
    if (!plain) return std::nullopt;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<Reply> refusal(const Query& query, const GuardOptions& options) {
  if (query.method != "GET" && query.method != "HEAD") {
    return error_reply(405, "only GET and HEAD: nothing can be changed here");
  }
  const auto host = host_of(query.host);
  if (!host) return error_reply(400, "a Host header is needed");
  if (!is_own_name(*host, options)) {
    return error_reply(403, "Host " + io::escaped(query.host) +
                                " is not this server's; kda view --allow-host adds a name");
  }
  // Browsers send the origin of the page with every request of a script to another site.
  if (!query.origin.empty() && query.origin != "http://" + query.host) {
    return error_reply(403, "requests from " + io::escaped(query.origin) + " are not answered");
  }
  const bool followed_link = query.fetch_mode == "navigate" && query.path == "/";
  if (!query.fetch_site.empty() && query.fetch_site != "same-origin" &&
      query.fetch_site != "none" && !followed_link) {
    return error_reply(403, "requests from other sites are not answered");
  }
  return std::nullopt;
}

}  // namespace kda::view
