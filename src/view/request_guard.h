/// Which requests are answered at all: reading ones, from a browser page of this server or from a
/// program, addressed to this server by a name that nobody else can give it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "view/reply.h"

namespace kda::view {

struct GuardOptions {
  /// Only loopback addresses and "localhost" are this server's names, beside `names`. Otherwise any
  /// IP address is: a page elsewhere can make a browser resolve its own *name* to this machine (DNS
  /// rebinding), not an address.
  bool loopback_only = true;
  std::vector<std::string> names;  ///< further host names, without port
};

/// Nothing when the request may be answered; else the refusal: 405 for methods other than GET and
/// HEAD, 400 without a Host, 403 for a Host that is not this server's, an Origin other than it, or
/// a fetch from another site (following a link to the page is fine).
std::optional<Reply> refusal(const Query& query, const GuardOptions& options);

/// The host of "host", "host:port", "[v6]:port", lower case, without brackets; nothing when
/// malformed.
std::optional<std::string> host_of(std::string_view host_and_port);

/// 127.0.0.0/8, ::1 or "localhost".
bool is_loopback(const std::string& host);

}  // namespace kda::view
