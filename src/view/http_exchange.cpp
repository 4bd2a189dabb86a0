#include "view/http_exchange.h"

#include <fcntl.h>
#include <httplib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

namespace kda::view {
namespace {

/// Headers that the parser gets to see. All others change nothing here, and some (Range,
/// Accept-Encoding, Expect) would make it do work of their own.
constexpr std::array<std::string_view, 5> kHeaders = {"host", "origin", "connection",
                                                      "sec-fetch-site", "sec-fetch-mode"};

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: "
    "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// A head with the headers above only; or why it is refused.
struct Filtered {
  std::string head;
  std::string fault;
};

Filtered filtered(std::string_view head) {
  Filtered out;
  int hosts = 0;
  bool first = true;
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head = end == std::string_view::npos ? std::string_view() : head.substr(end + 2);
    const bool plain = std::all_of(line.begin(), line.end(), [](char c) {
      return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    });
    if (!plain) return {"", "control characters in the request"};
    if (first) {
      out.head = std::string(line) + "\r\n";
      first = false;
      continue;
    }
    const std::string name = lower(line.substr(0, line.find(':')));
    if (name == "content-length" || name == "transfer-encoding") {
      return {"", "a request with a body is not answered"};
    }
    if (name == "host" && ++hosts > 1) return {"", "two Host headers"};
    if (std::find(kHeaders.begin(), kHeaders.end(), name) != kHeaders.end()) {
      out.head += std::string(line) + "\r\n";
    }
  }
  out.head += "\r\n";
  return out;
}

/// The request from memory, the response to a function. Versions of the library differ in the
/// functions that they call, hence no `override`.
class MemoryStream final : public httplib::Stream {
 public:
  MemoryStream(std::string_view in, const HttpExchange::Write& write) : in_(in), write_(write) {}

  using httplib::Stream::write;
  bool is_readable() const { return at_ < in_.size(); }
  bool is_writable() const { return open_; }
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return open_; }
  time_t duration() const { return 0; }
  ssize_t read(char* to, std::size_t size) {
    const std::size_t count = std::min(size, in_.size() - at_);
    std::copy_n(in_.data() + at_, count, to);
    at_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, std::size_t size) {
    open_ = open_ && write_(std::string_view(from, size));
    return open_ ? static_cast<ssize_t>(size) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const {
    ip.clear();
    port = 0;
  }
  socket_t socket() const { return 0; }
  bool is_open() const { return open_; }

 private:
  std::string_view in_;
  std::size_t at_ = 0;
  const HttpExchange::Write& write_;
  bool open_ = true;
};

Query query_of(const httplib::Request& request) {
  Query query{request.method,
              request.path,
              request.params,
              request.get_header_value("Host"),
              request.get_header_value("Origin"),
              request.get_header_value("Sec-Fetch-Site"),
              request.get_header_value("Sec-Fetch-Mode")};
  // The library leaves the query in the path when it has no '='.
  query.path = query.path.substr(0, query.path.find('?'));
  return query;
}

/// Reads with pread: a file cut short while it is sent ends the response, not the program.
class OpenRaw {
 public:
  explicit OpenRaw(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (fd_ >= 0 && ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) {
      size_ = static_cast<std::size_t>(status.st_size);
      ok_ = true;
    }
  }
  ~OpenRaw() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenRaw(const OpenRaw&) = delete;
  OpenRaw& operator=(const OpenRaw&) = delete;

  bool ok() const { return ok_; }
  std::size_t size() const { return size_; }
  bool send(std::size_t offset, std::size_t length, httplib::DataSink& sink) const {
    std::array<char, std::size_t{1} << 16> buffer;
    const ssize_t got =
        ::pread(fd_, buffer.data(), std::min(length, buffer.size()), static_cast<off_t>(offset));
    return got > 0 && sink.write(buffer.data(), static_cast<std::size_t>(got));
  }

 private:
  int fd_;
  std::size_t size_ = 0;
  bool ok_ = false;
};

void fill(httplib::Response& response, const Reply& reply) {
  response.status = reply.status;
  if (reply.status == 405) response.set_header("Allow", "GET, HEAD");
  if (reply.file) {
    const auto raw = std::make_shared<OpenRaw>(*reply.file);
    if (!raw->ok()) return fill(response, error_reply(404, "the file is gone"));
    if (raw->size() == 0) return response.set_content("", reply.type);
    response.set_content_provider(
        raw->size(), reply.type,
        [raw](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
          return raw->send(offset, length, sink);
        });
  } else if (!reply.asset.empty()) {
    response.set_content_provider(
        reply.asset.size(), reply.type,
        [bytes = reply.asset](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
          return sink.write(bytes.data() + offset, std::min(length, std::size_t{1} << 16));
        });
  } else {
    response.set_content(reply.body, reply.type);
  }
}

}  // namespace

/// The library's server without its sockets.
class HttpExchange::Server final : public httplib::Server {
 public:
  explicit Server(Respond respond) : respond_(std::move(respond)) {
    svr_sock_ = 0;  // the library cuts responses short while it has no socket
    set_keep_alive_timeout(15);
    set_keep_alive_max_count(100);
    set_default_headers({{"Content-Security-Policy", kPolicy},
                         {"X-Content-Type-Options", "nosniff"},
                         {"X-Frame-Options", "DENY"},
                         {"Referrer-Policy", "no-referrer"},
                         {"Cross-Origin-Resource-Policy", "same-origin"},
                         {"Cache-Control", "no-store"}});
    // Before routing, for every method: no pattern is ever matched against a path.
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      fill(response, respond_(query_of(request)));
      return HandlerResponse::Handled;
    });
  }

  bool run(std::string_view head, const Write& write) {
    MemoryStream stream(head, write);
    bool closed = false;
    const bool done = process(*this, stream, closed);
    return done && !closed && stream.is_open();
  }

 private:
  /// Newer versions of the library take the addresses as arguments.
  template <class Self>
  static bool process(Self& self, MemoryStream& stream, bool& closed) {
    if constexpr (requires { self.process_request(stream, false, closed, nullptr); }) {
      return self.process_request(stream, false, closed, nullptr);
    } else {
      return self.process_request(stream, std::string(), 0, std::string(), 0, false, closed,
                                  nullptr);
    }
  }

  Respond respond_;
};

HttpExchange::HttpExchange(Respond respond)
    : server_(std::make_unique<Server>(std::move(respond))) {}
HttpExchange::~HttpExchange() = default;

bool HttpExchange::run(std::string_view head, const Write& write) const {
  const Filtered request = filtered(head);
  if (!request.fault.empty()) {
    write(plain_response(400, "Bad Request", request.fault));
    return false;
  }
  return server_->run(request.head, write);
}

std::string plain_response(int status, std::string_view reason, std::string_view message) {
  const Reply reply = error_reply(status, message);
  return "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason) +
         "\r\nConnection: close\r\nContent-Type: " + reply.type +
         "\r\nContent-Length: " + std::to_string(reply.body.size()) + "\r\n\r\n" + reply.body;
}

}  // namespace kda::view
