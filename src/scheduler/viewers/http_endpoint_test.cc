// The endpoint against a loop that is quick, slow or gone, over real HTTP.
#include "scheduler/viewers/http_endpoint.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "scheduler/viewers/http_server.h"

namespace nvshare::scheduler {
namespace {

FileDescriptor connect_to(const std::string& url) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // As every scraper has: a connection that the server has queued when it ends is neither answered nor closed before the process ends.
  const timeval patience{20, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

std::string get(const std::string& url, const std::string& host = "localhost") {
  const FileDescriptor socket = connect_to(url);
  if (!socket) return "";
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = recv(socket.get(), part, sizeof part, 0)) > 0;) answer.append(part, static_cast<size_t>(got));
  return answer;
}

class HttpEndpointTest : public ::testing::Test {
 protected:
  void start() {
    auto endpoint = HttpEndpoint::serve({.address = "127.0.0.1:0", .metrics = true, .tenants_max = 10}, loop_,
                                        [this](int64_t, uint64_t, const SharedReports::Then& then) {
                                          ++looks_;
                                          protocol::admin::StatusReport report;
                                          report.version = "1.2.3";
                                          then(std::make_shared<const SharedReport>(std::move(report), monotonic_ns()));
                                        });
    ASSERT_TRUE(endpoint) << endpoint.error().text;
    endpoint_ = std::move(*endpoint);
  }
  void run_loop() {
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    loop_.post([this] { loop_.stop(); });
    thread_.join();
  }

  EventLoop loop_;
  std::atomic<int> looks_ = 0;
  std::unique_ptr<HttpEndpoint> endpoint_;
  std::thread thread_;
};

TEST_F(HttpEndpointTest, ScrapesShareReportsSoThatTheLoopMakesFew) {
  start();
  run_loop();
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> good = 0;
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 4; ++i) {
    scrapers.emplace_back([&] {
      for (int j = 0; j < 15; ++j) good += get(endpoint_->url()).find("nvshare_build_info{version=\"1.2.3\"} 1\n") != std::string::npos;
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(good, 60);
  EXPECT_GE(looks_, 1);
  EXPECT_LE(looks_, seconds * 10 + 1);
}

TEST_F(HttpEndpointTest, ALoopThatIsBusyCostsTheScrapeASecondAndEndsItCleanly) {
  start();
  const std::string answer = get(endpoint_->url());  // nobody runs the loop
  EXPECT_NE(answer.find("nvshare_scheduler_answered 0\n"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("nvshare_build_info"), std::string::npos);
  EXPECT_EQ(looks_, 0);
  // A scrape in progress does not keep the endpoint from ending, and a wish that the loop finds later goes nowhere.
  std::thread scraper([url = endpoint_->url()] { get(url); });
  endpoint_.reset();
  scraper.join();
  run_loop();
  TearDown();
  EXPECT_EQ(looks_, 0);
}

TEST_F(HttpEndpointTest, AClientThatSaysNothingDoesNotHoldUpTheLoopOrOthers) {
  start();
  run_loop();
  const FileDescriptor silent = connect_to(endpoint_->url());
  ASSERT_TRUE(silent);
  EXPECT_NE(get(endpoint_->url()).find("nvshare_scheduler_answered 1\n"), std::string::npos);
}

// They silenced it for a minute: two threads waited five seconds for each.
TEST_F(HttpEndpointTest, HalfSentRequestsKeepNobodyOut) {
  start();
  run_loop();
  std::vector<FileDescriptor> half;
  for (int i = 0; i < 200; ++i) {
    half.push_back(connect_to(endpoint_->url()));
    ASSERT_TRUE(half.back()) << i;
    static_cast<void>(send(half.back().get(), "GET /met", 8, MSG_NOSIGNAL));
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(get(endpoint_->url()).find("nvshare_scheduler_answered 1\n"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  char byte;
  EXPECT_EQ(recv(half.back().get(), &byte, 1, 0), 0) << "and it ends, when its request does not come";
}

TEST_F(HttpEndpointTest, WhatIsNoScrapeIsAnsweredAsHttpSays) {
  start();
  run_loop();
  const auto answer = [&](const std::string& request) {
    const FileDescriptor socket = connect_to(endpoint_->url());
    static_cast<void>(send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL));
    std::string all;
    char part[4096];
    for (ssize_t got = 0; (got = recv(socket.get(), part, sizeof part, 0)) > 0;) all.append(part, static_cast<size_t>(got));
    return all.substr(0, all.find("\r\n"));
  };
  EXPECT_EQ(answer("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(answer("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_EQ(answer("\r\n\r\n"), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(answer("HEAD /metrics HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
  EXPECT_EQ(answer("GET /metrics?x=1 HTTP/1.1\r\nHost: [::1]:9402\r\n\r\n"), "HTTP/1.1 200 OK");
  EXPECT_EQ(answer(std::string(9000, 'x')).substr(0, 12), "HTTP/1.1 431");
}

// A web site that a user of this machine visits has a name that it may make stand for 127.0.0.1.
TEST_F(HttpEndpointTest, ANameThatWasMadeToStandForTheLoopbackReadsNoMetrics) {
  start();
  run_loop();
  const std::string answer = get(endpoint_->url(), "evil.example:9402");
  EXPECT_EQ(answer.substr(0, answer.find("\r\n")), "HTTP/1.1 403 Forbidden");
  EXPECT_EQ(answer.find("nvshare_"), std::string::npos);
  EXPECT_NE(get(endpoint_->url(), "127.0.0.1:9402").find("nvshare_build_info"), std::string::npos);
}

TEST_F(HttpEndpointTest, APortInUseIsRefusedByName) {
  start();
  const std::string url = endpoint_->url();
  const std::string address = url.substr(7);
  auto second = HttpEndpoint::serve({.address = address, .metrics = true, .tenants_max = 10}, loop_,
                                    [](int64_t, uint64_t, const SharedReports::Then&) {});
  ASSERT_FALSE(second);
  EXPECT_NE(std::string(second.error().text).find(address), std::string::npos) << second.error().text;
}

// A connection that says what it wants while others' answers take longer than its patience.
TEST(HttpServerTest, WhoAskedWhileOthersWereAnsweredHasAnAnswer) {
  class SlowSite final : public HttpSite {
   public:
    std::optional<HttpResponse> answer(const HttpRequest& request) override {
      if (request.path == "/slow") std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      return plain_response("200 OK", "there you are\n");
    }
    std::string where() const override { return ""; }
  };
  Result<HttpListener> listener = listen_http("cannot serve a test", "127.0.0.1:0");
  ASSERT_TRUE(listener) << listener.error().text;
  std::vector<std::unique_ptr<HttpSite>> sites;
  sites.push_back(std::make_unique<SlowSite>());
  HttpServer server(std::move(listener->socket), std::move(sites));
  std::thread serves([&] { server.run(); });
  const FileDescriptor early = connect_to(listener->url), slow = connect_to(listener->url);
  const auto ask = [](const FileDescriptor& socket, const std::string& path) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n";
    return send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0;
  };
  EXPECT_TRUE(ask(slow, "/slow"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(ask(early, "/quick"));
  char first[16] = {};
  EXPECT_EQ(recv(early.get(), first, 15, 0), 15);
  EXPECT_STREQ(first, "HTTP/1.1 200 OK");
  server.end();
  serves.join();
}

}  // namespace
}  // namespace nvshare::scheduler
