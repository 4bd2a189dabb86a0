/// Connections: who may have one, how long, and how much it may send.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "view/http_exchange.h"
#include "view/listener.h"

namespace kda::view {

struct ServerLimits {
  std::size_t connections = 32;                 ///< at once; a further one gets 503
  std::size_t head_bytes = 16384;               ///< request line and headers; more gets 431
  int requests = 100;                           ///< on one connection
  std::chrono::milliseconds idle{15'000};       ///< between requests
  std::chrono::milliseconds head{10'000};       ///< from a request's first byte to its last
  std::chrono::milliseconds stalled{10'000};    ///< while the client takes nothing
  std::chrono::milliseconds response{300'000};  ///< for one response in all
};

/// Serves from construction to destruction, with a thread for each connection.
class HttpServer {
 public:
  HttpServer(const Listener& listener, HttpExchange::Respond respond,
             const ServerLimits& limits = {});
  /// Ends every connection and waits for its thread.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  struct Connection {
    int socket;
    std::thread thread;
    bool done = false;
  };

  void accept_all();
  void take(int socket);
  void serve(int socket);
  void answer_requests(int socket);
  bool read_head(int socket, std::string& buffer, std::size_t& head_size);
  bool write_all(int socket, std::string_view bytes,
                 std::chrono::steady_clock::time_point deadline) const;
  void join_finished();

  const Listener& listener_;
  HttpExchange exchange_;
  ServerLimits limits_;
  std::atomic<bool> stopping_{false};
  int wake_ = -1;  ///< an eventfd that ends the wait for connections
  std::mutex mutex_;
  std::list<Connection> connections_;
  std::thread acceptor_;
};

}  // namespace kda::view
