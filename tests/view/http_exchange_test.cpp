#include "view/http_exchange.h"

#include <filesystem>

#include "view_test_support.h"

namespace kda::view {
namespace {

using test::put;
using test::TempFolder;

/// What an exchange saw and wrote.
struct Seen {
  std::string response;
  bool again = false;
  std::vector<Query> queries;
};

Seen exchange(const std::string& head, const Reply& reply = {}) {
  Seen seen;
  const HttpExchange http([&](const Query& query) {
    seen.queries.push_back(query);
    return reply;
  });
  seen.again = http.run(head, [&](std::string_view bytes) {
    seen.response += bytes;
    return true;
  });
  return seen;
}

TEST(HttpExchange, Request_IsDecoded) {
  Reply reply;
  reply.body = "{}";
  const Seen seen = exchange(
      "GET /view/tensor?key=a%2Fb%20c&at=1%2C2 HTTP/1.1\r\nHost: localhost:8000\r\n"
      "Origin: http://localhost:8000\r\nSec-Fetch-Site: same-origin\r\n\r\n",
      reply);
  ASSERT_EQ(seen.queries.size(), 1U);
  const Query& query = seen.queries[0];
  EXPECT_EQ(query.method, "GET");
  EXPECT_EQ(query.path, "/view/tensor");
  EXPECT_EQ(query.parameter("key"), "a/b c");
  EXPECT_EQ(query.parameter("at"), "1,2");
  EXPECT_EQ(query.parameter("none"), "");
  EXPECT_EQ(query.host, "localhost:8000");
  EXPECT_EQ(query.origin, "http://localhost:8000");
  EXPECT_EQ(query.fetch_site, "same-origin");
  EXPECT_TRUE(seen.again);
  EXPECT_TRUE(seen.response.starts_with("HTTP/1.1 200 OK\r\n")) << seen.response;
  EXPECT_NE(seen.response.find("Content-Length: 2\r\n"), std::string::npos);
  EXPECT_TRUE(seen.response.ends_with("\r\n\r\n{}"));
  for (const char* header :
       {"Content-Security-Policy: default-src 'none'", "nosniff", "X-Frame-Options: DENY",
        "Cache-Control: no-store", "Cross-Origin-Resource-Policy: same-origin"}) {
    EXPECT_NE(seen.response.find(header), std::string::npos) << header;
  }
  EXPECT_EQ(seen.response.find("Access-Control"), std::string::npos);
}

TEST(HttpExchange, Head_HasNoBody) {
  Reply reply;
  reply.body = "secret";
  const Seen seen = exchange("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", reply);
  EXPECT_TRUE(seen.response.ends_with("\r\n\r\n"));
  EXPECT_EQ(seen.response.find("secret"), std::string::npos);
}

TEST(HttpExchange, ConnectionClose_EndsIt) {
  EXPECT_FALSE(exchange("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").again);
  EXPECT_FALSE(exchange("GET / HTTP/1.0\r\nHost: a\r\n\r\n").again);
}

TEST(HttpExchange, HeadersThatNobodyNeeds_DoNothing) {
  Reply reply;
  reply.body = std::string(5000, 'x');
  const Seen seen = exchange(
      "GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nAccept-Encoding: gzip, br\r\n"
      "Expect: 100-continue\r\nREMOTE_ADDR: 1.2.3.4\r\n\r\n",
      reply);
  EXPECT_TRUE(seen.response.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(seen.response.find("Content-Encoding"), std::string::npos);
  EXPECT_TRUE(seen.response.ends_with(reply.body));
}

TEST(HttpExchange, BodiesAndOddHeads_AreRefusedBeforeAnyoneSeesThem) {
  const std::string tail = "Host: a\r\n\r\n";
  for (const std::string& head : {
           "POST / HTTP/1.1\r\nContent-Length: 5\r\n" + tail,
           "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + tail,
           "GET / HTTP/1.1\r\nHost: b\r\n" + tail,
           "GET / HTTP/1.1\r\nX: a\nHost: b\r\n" + tail,
           std::string("GET /\0 HTTP/1.1\r\n", 18) + tail,
           "GET / HTTP/9.9\r\n" + tail,
           "nonsense\r\n" + tail,
           "\r\n" + tail,
       }) {
    const Seen seen = exchange(head);
    EXPECT_TRUE(seen.response.starts_with("HTTP/1.1 400")) << head << seen.response;
    EXPECT_TRUE(seen.queries.empty()) << head;
  }
}

TEST(HttpExchange, File_IsSentWhole) {
  const TempFolder folder;
  const std::string content(200000, 'k');
  put(folder / "f", content);
  put(folder / "none", "");
  Reply reply;
  reply.type = "application/octet-stream";
  reply.file = folder / "f";
  EXPECT_TRUE(exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n", reply).response.ends_with(content));
  reply.file = folder / "none";
  EXPECT_NE(exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n", reply).response.find("Content-Length: 0"),
            std::string::npos);
  for (const char* gone : {"gone", "."}) {
    reply.file = folder / gone;
    EXPECT_TRUE(
        exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n", reply).response.starts_with("HTTP/1.1 404"));
  }
}

TEST(HttpExchange, ClientThatLeaves_EndsIt) {
  const HttpExchange http([](const Query&) { return Reply{}; });
  int writes = 0;
  EXPECT_FALSE(http.run("GET / HTTP/1.1\r\nHost: a\r\n\r\n", [&](std::string_view) {
    ++writes;
    return false;
  }));
  EXPECT_EQ(writes, 1);
}

}  // namespace
}  // namespace kda::view
