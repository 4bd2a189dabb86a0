#include "view/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "io/io_test_support.h"
#include "view/listener.h"

namespace kda::view {
namespace {

using std::chrono::milliseconds;
using test::expect_error;

/// A plain client that can be as rude as a test wants.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view text) const {
    ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  /// Everything until the server closes, `until` has come, or five seconds have passed.
  std::string receive(std::string_view until = {}) const {
    std::string all;
    pollfd entry{socket_, POLLIN, 0};
    while ((until.empty() || all.find(until) == std::string::npos) && ::poll(&entry, 1, 5000) > 0) {
      std::array<char, 4096> piece;
      const ssize_t got = ::recv(socket_, piece.data(), piece.size(), 0);
      if (got <= 0) {
        closed_ = true;
        break;
      }
      all.append(piece.data(), static_cast<std::size_t>(got));
    }
    return all;
  }
  bool closed() const { return closed_; }

 private:
  int socket_;
  mutable bool closed_ = false;
};

constexpr const char* kRequest = "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";

Reply echo(const Query& query) {
  Reply reply;
  reply.body = "[" + query.path + "]";
  return reply;
}

TEST(HttpServer, SeveralRequestsOnOneConnection) {
  const Listener listener("127.0.0.1", 0);
  const HttpServer server(listener, echo);
  const Client client(listener.port());
  for (int i = 0; i < 3; ++i) {
    client.send(kRequest);
    EXPECT_NE(client.receive("[/x]").find("200 OK"), std::string::npos);
  }
  // Two at once, in pieces.
  client.send(std::string(kRequest) + "GET /y HT");
  client.send("TP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string both = client.receive();
  EXPECT_NE(both.find("[/x]"), std::string::npos);
  EXPECT_NE(both.find("[/y]"), std::string::npos);
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, LongHead_Is431) {
  const Listener listener("127.0.0.1", 0);
  const HttpServer server(listener, echo);
  const Client client(listener.port());
  client.send("GET / HTTP/1.1\r\nX: " + std::string(100000, 'a'));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, SlowHead_Is408AndIdleIsClosed) {
  ServerLimits limits;
  limits.head = milliseconds(150);
  limits.idle = milliseconds(150);
  const Listener listener("127.0.0.1", 0);
  const HttpServer server(listener, echo, limits);
  const Client slow(listener.port());
  const Client idle(listener.port());
  slow.send("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(slow.receive().starts_with("HTTP/1.1 408"));
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.closed());
}

TEST(HttpServer, ClientThatTakesNothing_IsLeft) {
  ServerLimits limits;
  limits.stalled = milliseconds(150);
  const Listener listener("127.0.0.1", 0);
  std::atomic<int> asked{0};
  const HttpServer server(
      listener,
      [&](const Query&) {
        ++asked;
        Reply reply;
        reply.body.assign(std::size_t{64} << 20, 'x');  // more than the buffers of a socket
        return reply;
      },
      limits);
  const Client client(listener.port());
  client.send(kRequest);
  while (asked == 0)
    std::this_thread::sleep_for(milliseconds(5));
  std::this_thread::sleep_for(milliseconds(600));
  const std::string all = client.receive();
  EXPECT_TRUE(client.closed());
  EXPECT_LT(all.size(), std::size_t{64} << 20);
}

TEST(HttpServer, TooManyConnections_Get503) {
  ServerLimits limits;
  limits.connections = 2;
  const Listener listener("127.0.0.1", 0);
  const HttpServer server(listener, echo, limits);
  std::optional<Client> first(std::in_place, listener.port());
  const Client second(listener.port());
  first->send(kRequest);
  first->receive("[/x]");
  second.send(kRequest);
  second.receive("[/x]");
  EXPECT_TRUE(Client(listener.port()).receive().starts_with("HTTP/1.1 503"));
  // A place that becomes free is given away again.
  first.reset();
  for (int tries = 0; tries < 100; ++tries) {
    const Client third(listener.port());
    third.send(kRequest);
    if (third.receive("[/x]").find("200 OK") != std::string::npos) return;
    std::this_thread::sleep_for(milliseconds(20));
  }
  ADD_FAILURE() << "the place was never free";
}

TEST(HttpServer, End_ClosesOpenConnections) {
  const Listener listener("127.0.0.1", 0);
  std::optional<HttpServer> server(std::in_place, listener, echo);
  const Client client(listener.port());
  client.send(kRequest);
  client.receive("[/x]");
  server.reset();  // would wait for the idle limit otherwise
  EXPECT_EQ(client.receive(), "");
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, Resets_DoNotHurt) {
  const Listener listener("127.0.0.1", 0);
  const HttpServer server(listener, echo);
  for (int i = 0; i < 20; ++i) {
    const Client client(listener.port());
    if (i % 2 == 0) client.send(kRequest);
  }
  const Client client(listener.port());
  client.send(kRequest);
  EXPECT_NE(client.receive("[/x]").find("200 OK"), std::string::npos);
}

TEST(Listener, PortZero_IsAFreeOne) {
  const Listener listener("127.0.0.1", 0);
  EXPECT_GT(listener.port(), 0);
  EXPECT_TRUE(listener.is_loopback());
  EXPECT_EQ(listener.url(), "http://127.0.0.1:" + std::to_string(listener.port()) + "/");
}

TEST(Listener, BusyPort_IsAClearError) {
  const Listener first("127.0.0.1", 0);
  expect_error(ErrorCode::kIo, {std::to_string(first.port()), "in use"},
               [&] { Listener second("127.0.0.1", first.port()); });
}

TEST(Listener, BadAddresses_AreClearErrors) {
  expect_error(ErrorCode::kInvalidArgument, {"port", "70000"},
               [] { Listener l("127.0.0.1", 70000); });
  expect_error(ErrorCode::kInvalidArgument, {"host"}, [] { Listener l("no such host", 0); });
  expect_error(ErrorCode::kIo, {"not one of this machine"}, [] { Listener l("192.0.2.1", 0); });
}

TEST(Listener, AnyAddress_IsNotLoopback) {
  const Listener listener("0.0.0.0", 0);
  EXPECT_FALSE(listener.is_loopback());
  EXPECT_TRUE(listener.url().starts_with("http://127.0.0.1:"));
}

}  // namespace
}  // namespace kda::view
