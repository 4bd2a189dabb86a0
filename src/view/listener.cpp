#include "view/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "io/escape.h"
#include "kda/error.h"
#include "view/request_guard.h"

namespace kda::view {
namespace {

constexpr int kBacklog = 64;

struct AddressListDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

AddressList resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int fault = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (fault != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "host: cannot resolve " + io::escaped(host) + ": " + ::gai_strerror(fault));
  }
  return AddressList(list);
}

std::string bind_fault(const std::string& host, int port, int code) {
  const std::string where = "port " + std::to_string(port) + " of " + host;
  if (code == EADDRINUSE) {
    return where + " is in use by another program: choose another one, or 0 for any free port";
  }
  if (code == EACCES) return where + " needs privileges: choose one above 1023";
  if (code == EADDRNOTAVAIL) return where + ": the address is not one of this machine";
  return where + ": " + std::strerror(code);
}

/// Address as text and port of a bound socket.
std::pair<std::string, int> own_address(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return {text.data(), ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
  ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  return {text.data(), ntohs(v4.sin_port)};
}

std::string url_of(std::string address, int port) {
  if (address == "0.0.0.0") address = "127.0.0.1";
  if (address == "::") address = "::1";
  if (address.find(':') != std::string::npos) address = "[" + address + "]";
  return "http://" + address + ":" + std::to_string(port) + "/";
}

}  // namespace

Listener::Listener(const std::string& host, int port) {
  if (port < 0 || port > 65535) {
    throw Error(ErrorCode::kInvalidArgument,
                "port: expected 0 to 65535, got " + std::to_string(port));
  }
  const AddressList addresses = resolve(host, port);
  int code = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses.get(); at != nullptr && socket_ < 0; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (socket < 0) {
      code = errno;
      continue;
    }
    // A restart need not wait for the last run's connections; two servers still cannot share.
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket, at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0) {
      socket_ = socket;
    } else {
      code = errno;
      ::close(socket);
    }
  }
  if (socket_ < 0) throw Error(ErrorCode::kIo, bind_fault(host, port, code));
  const auto [address, bound_port] = own_address(socket_);
  port_ = bound_port;
  is_loopback_ = view::is_loopback(address);
  url_ = url_of(address, bound_port);
}

Listener::~Listener() {
  if (socket_ >= 0) ::close(socket_);
}

}  // namespace kda::view
