/// One HTTP request in, one response out, over memory: the protocol is cpp-httplib's, the sockets
/// are not (http_server.h), so that size and time have limits and requests can be tested and fuzzed
/// without a network.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "view/reply.h"

namespace kda::view {

class HttpExchange {
 public:
  using Respond = std::function<Reply(const Query&)>;
  /// False when the client takes no more.
  using Write = std::function<bool(std::string_view)>;

  explicit HttpExchange(Respond respond);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  /// `head`: the request line and headers, up to and with the empty line. Writes the response;
  /// returns whether another request may follow on this connection. A request with a body is
  /// refused and ends it. Safe from several threads.
  bool run(std::string_view head, const Write& write) const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

/// A whole response with {"error": message}, for failures before a request was read.
std::string plain_response(int status, std::string_view reason, std::string_view message);

}  // namespace kda::view
