#include "view/request_guard.h"

#include <gtest/gtest.h>

namespace kda::view {
namespace {

Query query_to(const std::string& host) {
  Query query;
  query.method = "GET";
  query.path = "/";
  query.host = host;
  return query;
}

int status_of(const Query& query, const GuardOptions& options = {}) {
  const auto refused = refusal(query, options);
  return refused ? refused->status : 200;
}

TEST(RequestGuard, LoopbackNames_AreAnswered) {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:8000", "localhost:9000", "LocalHost", "[::1]:8000", "127.5.5.5"}) {
    EXPECT_EQ(status_of(query_to(host)), 200) << host;
  }
}

TEST(RequestGuard, OtherNames_AreRefused) {
  // The second is what a page sends whose name was made to mean this machine.
  for (const char* host : {"example.com", "evil.example:8000", "192.168.1.5:8000",
                           "localhost.evil.com", "127.0.0.1.nip.io", "0x7f000001"}) {
    EXPECT_EQ(status_of(query_to(host)), 403) << host;
  }
  for (const char* host : {"", ":8000", "a b", "localhost:80x", "localhost:", "[::1", "[]", "a/b",
                           "localhost:123456", "user@localhost"}) {
    EXPECT_EQ(status_of(query_to(host)), 400) << host;
  }
}

TEST(RequestGuard, OpenServer_TakesAddressesAndItsNames) {
  const GuardOptions open{false, {"gpu.lan"}};
  EXPECT_EQ(status_of(query_to("192.168.1.5:8000"), open), 200);
  EXPECT_EQ(status_of(query_to("[2001:db8::1]:8000"), open), 200);
  EXPECT_EQ(status_of(query_to("gpu.lan:8000"), open), 200);
  EXPECT_EQ(status_of(query_to("evil.example"), open), 403);
}

TEST(RequestGuard, OnlyReadingMethods) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", ""}) {
    Query query = query_to("localhost");
    query.method = method;
    EXPECT_EQ(status_of(query), 405) << method;
  }
  Query head = query_to("localhost");
  head.method = "HEAD";
  EXPECT_EQ(status_of(head), 200);
}

TEST(RequestGuard, OtherOrigins_AreRefused) {
  Query query = query_to("localhost:8000");
  query.origin = "http://localhost:8000";
  EXPECT_EQ(status_of(query), 200);
  for (const char* origin :
       {"http://evil.example", "http://localhost:9000", "https://localhost:8000", "null"}) {
    query.origin = origin;
    EXPECT_EQ(status_of(query), 403) << origin;
  }
}

TEST(RequestGuard, OtherSites_MayOnlyLinkToThePage) {
  Query query = query_to("localhost:8000");
  query.fetch_site = "same-origin";
  query.path = "/api/config";
  EXPECT_EQ(status_of(query), 200);
  query.fetch_site = "none";
  EXPECT_EQ(status_of(query), 200);
  for (const char* site : {"cross-site", "same-site", "anything"}) {
    query.fetch_site = site;
    query.fetch_mode = "no-cors";
    EXPECT_EQ(status_of(query), 403) << site;
    query.fetch_mode = "navigate";
    EXPECT_EQ(status_of(query), 403) << site;
  }
  query.path = "/";
  EXPECT_EQ(status_of(query), 200);
}

}  // namespace
}  // namespace kda::view
