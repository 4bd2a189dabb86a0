/// A listening TCP socket.
#pragma once

#include <string>

namespace kda::view {

class Listener {
 public:
  /// Binds and listens; port 0 takes a free one. Errors: kInvalidArgument for a host that cannot be
  /// resolved or a port outside [0, 65535]; kIo when the port is taken, needs privileges, or the
  /// address is not this machine's.
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int socket() const { return socket_; }
  int port() const { return port_; }
  /// Whether only this machine can connect.
  bool is_loopback() const { return is_loopback_; }
  /// What a browser on this machine opens: "http://127.0.0.1:8000/".
  const std::string& url() const { return url_; }

 private:
  int socket_ = -1;
  int port_ = 0;
  bool is_loopback_ = false;
  std::string url_;
};

}  // namespace kda::view
