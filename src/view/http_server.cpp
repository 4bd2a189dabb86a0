#include "view/http_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "kda/error.h"

namespace kda::view {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

/// False at the deadline or on an error.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  pollfd entry{socket, events, 0};
  for (;;) {
    const int left = milliseconds_until(deadline);
    const int ready = ::poll(&entry, 1, left);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

HttpServer::HttpServer(const Listener& listener, HttpExchange::Respond respond,
                       const ServerLimits& limits)
    : listener_(listener), exchange_(std::move(respond)), limits_(limits) {
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) throw Error(ErrorCode::kIo, std::string("eventfd: ") + std::strerror(errno));
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  stopping_ = true;
  const std::uint64_t one = 1;
  // Cannot fail: the counter is 0.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (Connection& connection : connections_) {
      if (!connection.done) ::shutdown(connection.socket, SHUT_RDWR);
    }
  }
  for (Connection& connection : connections_)
    connection.thread.join();
  ::close(wake_);
}

void HttpServer::accept_all() {
  std::array<pollfd, 2> entries{{{listener_.socket(), POLLIN, 0}, {wake_, POLLIN, 0}}};
  while (!stopping_) {
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (stopping_) return;
    if ((entries[0].revents & POLLIN) == 0) continue;
    const int socket =
        ::accept4(listener_.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      // Out of descriptors: the waiting connection would make poll return at once, for ever.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      continue;
    }
    take(socket);
  }
}

void HttpServer::take(int socket) {
  join_finished();
  {
    const std::lock_guard lock(mutex_);
    if (connections_.size() < limits_.connections) {
      try {
        connections_.push_back({socket, {}, false});
        connections_.back().thread = std::thread([this, socket] { serve(socket); });
        return;
      } catch (const std::system_error&) {
        connections_.pop_back();  // no thread to be had: refused below
      }
    }
  }
  const std::string reply =
      plain_response(503, "Service Unavailable", "too many connections: close other pages");
  ::send(socket, reply.data(), reply.size(), MSG_NOSIGNAL);
  ::close(socket);
}

void HttpServer::join_finished() {
  std::list<Connection> finished;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = connections_.begin(); at != connections_.end();) {
      const auto next = std::next(at);
      if (at->done) finished.splice(finished.end(), connections_, at);
      at = next;
    }
  }
  for (Connection& connection : finished)
    connection.thread.join();
}

void HttpServer::serve(int socket) {
  try {
    answer_requests(socket);
  } catch (const std::exception&) {
    // No memory even for a reply: the client sees the connection end.
  }
  // The rest of a refused request is read away for a moment: closing over unread bytes would reset
  // the connection and could take the reply with it.
  ::shutdown(socket, SHUT_WR);
  std::array<char, 4096> rest;
  const auto deadline = Clock::now() + std::chrono::milliseconds(200);
  for (int reads = 0; reads < 64 && wait_for(socket, POLLIN, deadline); ++reads) {
    if (::recv(socket, rest.data(), rest.size(), 0) <= 0) break;
  }
  // Under the lock: the destructor must not shut down a number that means another socket by now.
  const std::lock_guard lock(mutex_);
  ::close(socket);
  for (Connection& connection : connections_) {
    if (connection.socket == socket && !connection.done) connection.done = true;
  }
}

void HttpServer::answer_requests(int socket) {
  std::string buffer;
  for (int request = 0; request < limits_.requests && !stopping_; ++request) {
    std::size_t head_size = 0;
    if (!read_head(socket, buffer, head_size)) break;
    const auto deadline = Clock::now() + limits_.response;
    const bool again =
        exchange_.run(std::string_view(buffer).substr(0, head_size),
                      [&](std::string_view bytes) { return write_all(socket, bytes, deadline); });
    buffer.erase(0, head_size);
    if (!again) break;
  }
}

bool HttpServer::read_head(int socket, std::string& buffer, std::size_t& head_size) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  bool began = !buffer.empty();
  auto deadline = Clock::now() + (began ? limits_.head : limits_.idle);
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = buffer.find(kEnd, searched);
    if (end != std::string::npos) {
      head_size = end + kEnd.size();
      return true;
    }
    if (buffer.size() > limits_.head_bytes) {
      write_all(
          socket,
          plain_response(431, "Request Header Fields Too Large",
                         "a request may have " + std::to_string(limits_.head_bytes) + " bytes"),
          Clock::now() + limits_.stalled);
      return false;
    }
    searched = buffer.size() < kEnd.size() ? 0 : buffer.size() - kEnd.size() + 1;
    if (!wait_for(socket, POLLIN, deadline)) {
      if (began) {
        write_all(socket, plain_response(408, "Request Timeout", "the request took too long"),
                  Clock::now() + limits_.stalled);
      }
      return false;
    }
    std::array<char, 4096> piece;
    const ssize_t got = ::recv(socket, piece.data(), piece.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    if (!began) {
      began = true;
      deadline = Clock::now() + limits_.head;
    }
    buffer.append(piece.data(), static_cast<std::size_t>(got));
  }
}

bool HttpServer::write_all(int socket, std::string_view bytes, Clock::time_point deadline) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
    if (stopping_ ||
        !wait_for(socket, POLLOUT, std::min(deadline, Clock::now() + limits_.stalled))) {
      return false;
    }
  }
  return Clock::now() < deadline;
}

}  // namespace kda::view
