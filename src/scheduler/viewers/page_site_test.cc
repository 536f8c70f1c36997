// The page and its JSON over real HTTP: what is served, to whom, and what it costs the loop.
#include "scheduler/viewers/page_site.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "protocol/admin.h"
#include "scheduler/viewers/http_endpoint.h"

namespace nvshare::scheduler {
namespace {

constexpr char kToken[] = "a-token-of-the-tests";

class PageSiteTest : public ::testing::Test {
 protected:
  void start(const std::string& token = "") {
    HttpEndpoint::Options options;
    options.address = "127.0.0.1:0";
    options.page = true;
    options.page_token = token;
    auto endpoint = HttpEndpoint::serve(options, loop_, [this](int64_t age_max_ns, uint64_t changes_min, SharedReports::Then then) {
      reports_.ask(age_max_ns, changes_min, std::move(then));
    });
    ASSERT_TRUE(endpoint) << endpoint.error().text;
    endpoint_ = std::move(*endpoint);
    report_.version = "1.2.3";
    report_.tenants.emplace_back().name = "<script>alert(1)</script>";
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    endpoint_.reset();
    if (!thread_.joinable()) return;
    loop_.post([this] { loop_.stop(); });
    thread_.join();
  }

  // All of the answer to such a request line and headers.
  std::string ask(const std::string& line, const std::string& headers = "Host: 127.0.0.1:9402\r\n") {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const std::string url = endpoint_->url();
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{20, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
    const std::string request = line + " HTTP/1.1\r\n" + headers + "\r\n";
    if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char part[4096];
    for (ssize_t got = 0; (got = recv(socket.get(), part, sizeof part, 0)) > 0;) answer.append(part, static_cast<size_t>(got));
    return answer;
  }
  static std::string status_of(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }
  static std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

  EventLoop loop_;
  protocol::admin::StatusReport report_;
  std::atomic<int> looks_ = 0;
  SharedReports reports_{loop_, [this](bool begins) -> std::optional<protocol::admin::StatusReport> {
                           if (begins) return std::nullopt;  // it is made in two parts
                           ++looks_;
                           return report_;
                         }};
  std::unique_ptr<HttpEndpoint> endpoint_;
  std::thread thread_;
};

TEST_F(PageSiteTest, TheJsonIsWhatStatusSaysAndTheFilesAreStatic) {
  start();
  EXPECT_EQ(body_of(ask("GET /status.json")), protocol::admin::encode(report_));
  const std::string page = ask("GET /");
  EXPECT_EQ(status_of(page), "HTTP/1.1 200 OK");
  EXPECT_NE(page.find("<!DOCTYPE html>"), std::string::npos);
  EXPECT_EQ(page.find("script>alert"), std::string::npos) << "nothing that a program says is in the page itself";
  EXPECT_NE(ask("GET /page.js").find("'use strict';"), std::string::npos);
  EXPECT_NE(ask("GET /page.css").find("prefers-color-scheme: dark"), std::string::npos);
  const std::string head = ask("HEAD /status.json");
  EXPECT_EQ(status_of(head), "HTTP/1.1 200 OK");
  EXPECT_EQ(body_of(head), "");
  EXPECT_EQ(status_of(ask("GET /metrics")), "HTTP/1.1 404 Not Found") << "that address serves the page alone";
}

TEST_F(PageSiteTest, NothingCanBeAskedToChange) {
  start();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
    EXPECT_EQ(status_of(ask(std::string(method) + " /status.json")), "HTTP/1.1 405 Method Not Allowed") << method;
}

TEST_F(PageSiteTest, NoOtherSiteMayReadOrFrameIt) {
  start();
  for (const char* path : {"/", "/page.js", "/status.json"}) {
    const std::string answer = ask(std::string("GET ") + path, "Host: localhost\r\nOrigin: https://evil.example\r\n");
    EXPECT_EQ(answer.find("Access-Control"), std::string::npos) << path;
    for (const char* header : {"Content-Security-Policy: default-src 'none';", "frame-ancestors 'none'",
                               "Cross-Origin-Resource-Policy: same-origin", "X-Content-Type-Options: nosniff", "Cache-Control: no-store"})
      EXPECT_NE(answer.find(header), std::string::npos) << path << " has no " << header;
  }
}

TEST_F(PageSiteTest, ANameThatWasMadeToStandForThisMachineReadsNothing) {
  start();
  for (const char* host : {"Host: evil.example\r\n", "Host: evil.example:9402\r\n", "Host: 127.0.0.1.evil.example\r\n", "Host:\r\n", "",
                           "Host: [::1\r\n", "Host: [evil]\r\n", "Host: 127.0.0.1\r\nHost: evil.example\r\n"}) {
    for (const char* path : {"/", "/status.json"}) {
      const std::string answer = ask(std::string("GET ") + path, host);
      EXPECT_EQ(status_of(answer), "HTTP/1.1 403 Forbidden") << host << path;
      EXPECT_EQ(answer.find("1.2.3"), std::string::npos) << host;
    }
  }
  EXPECT_EQ(looks_, 0);
  for (const char* host : {"Host: 127.0.0.1:9402\r\n", "host: LOCALHOST:8080\r\n", "Host: [::1]:9402\r\n", "Host:10.1.2.3\r\n"})
    EXPECT_EQ(status_of(ask("GET /status.json", host)), "HTTP/1.1 200 OK") << host;
}

TEST_F(PageSiteTest, WithATokenOnlyWhoHasItReadsFigures) {
  start(kToken);
  const std::string host = "Host: node1:9402\r\n";
  for (const std::string& wrong :
       {std::string(), std::string("Authorization: Bearer \r\n"), std::string("Authorization: Bearer a-token\r\n"),
        std::string("Authorization: Basic ") + kToken + "\r\n", std::string("Authorization: Bearer x-token-of-the-tests\r\n")}) {
    const std::string answer = ask("GET /status.json", host + wrong);
    EXPECT_EQ(status_of(answer), "HTTP/1.1 401 Unauthorized") << wrong;
    EXPECT_EQ(answer.find("1.2.3"), std::string::npos) << wrong;
  }
  EXPECT_EQ(status_of(ask(std::string("GET /status.json?token=") + kToken, host)), "HTTP/1.1 401 Unauthorized") << "never in the address";
  EXPECT_EQ(looks_, 0);
  const std::string answer = ask("GET /status.json", host + "Authorization: Bearer " + kToken + "\r\n");
  EXPECT_EQ(body_of(answer), protocol::admin::encode(report_));
  EXPECT_EQ(status_of(ask("GET /", host)), "HTTP/1.1 200 OK") << "the page itself, which asks for the token";
}

TEST_F(PageSiteTest, WhatIsNewIsAnsweredWhenItIsThere) {
  start();
  loop_.post([this] { report_.epoch = report_.changes = 7; });
  endpoint_->changed(7);
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  const std::string quiet = body_of(ask("GET /status.json?changes=7"));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(2900)) << "nothing was new";
  EXPECT_EQ(quiet.find("\"since\""), std::string::npos) << "and in the end it is all of it";

  std::string news;
  std::atomic<bool> answered = false;
  std::thread viewer([&] {
    news = body_of(ask("GET /status.json?changes=7"));
    answered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(answered);
  loop_.post([this] {
    report_.changes = 9;
    report_.clients.emplace_back().id = 5;
    report_.clients.back().changed = 9;
    report_.tenants.back().changed = 3;
    endpoint_->changed(9);
  });
  viewer.join();
  const auto report = protocol::admin::decode_status(news);
  ASSERT_TRUE(report) << report.error().text;
  EXPECT_EQ(report->since, 7u);
  EXPECT_EQ(report->changes, 9u);
  EXPECT_EQ(report->clients.size(), 1u);
  EXPECT_TRUE(report->tenants.empty()) << "the viewer has it";
}

// Beside changes on other GPUs one on these is waited for, and in the end the answer is all of it.
TEST_F(PageSiteTest, WhatIsNewOnTheNamedGpusIsWaitedFor) {
  start();
  loop_.post([this] { report_.epoch = report_.changes = 9; });
  endpoint_->changed(9, {{"GPU-a", 7}, {"GPU-b", 9}});
  const auto is_news = [&](const std::string& gpus) {
    return body_of(ask("GET /status.json?changes=7&gpus=" + gpus)).find("\"since\":7") != std::string::npos;
  };
  EXPECT_TRUE(is_news("GPU-b"));
  EXPECT_TRUE(is_news("GPU-a,GPU-b"));
  std::string many, few;
  for (int i = 0; i < 65; ++i) (i < 64 ? few : many) += "GPU-a,";
  EXPECT_TRUE(is_news(few + many)) << "more than a page names: as if it named none";
  EXPECT_TRUE(is_news("GPU-a,,GPU-a"));
  EXPECT_TRUE(is_news(",,,,"));
  EXPECT_TRUE(is_news("GPU-of-another-day")) << "what is not known may have changed";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(is_news("GPU-a"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2900));
  std::thread change([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    loop_.post([this] {
      report_.changes = 10;
      endpoint_->changed(10, {{"GPU-a", 10}, {"GPU-b", 9}});
    });
  });
  EXPECT_TRUE(is_news("GPU-a"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(5800)) << "its own three seconds are not over";
  change.join();
  EXPECT_FALSE(is_news("")) << "no GPU is on the screen";
}

// Waiting holds no connections that others need: of one address only so many wait, and the next is answered at once.
TEST_F(PageSiteTest, ViewersThatWaitKeepNobodyOut) {
  start();
  loop_.post([this] { report_.changes = 7; });
  endpoint_->changed(7);
  ask("GET /status.json");
  constexpr int kWaiting = 40;
  std::atomic<int> at_once = 0, good = 0;
  std::vector<std::thread> viewers;
  for (int i = 0; i < kWaiting; ++i) {
    viewers.emplace_back([&] {
      const auto begin = std::chrono::steady_clock::now();
      good += status_of(ask("GET /status.json?changes=7")) == "HTTP/1.1 200 OK" ? 1 : 0;
      at_once += std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2900) ? 1 : 0;
    });
  }
  EXPECT_EQ(status_of(ask("GET /page.css")), "HTTP/1.1 200 OK");
  for (std::thread& viewer : viewers) viewer.join();
  EXPECT_EQ(good, kWaiting);
  EXPECT_GE(at_once, kWaiting - 16 * 2) << "16 of an address wait at a time, and each for three seconds";
}

// Ten browsers: the loop makes few reports, whatever they ask.
TEST_F(PageSiteTest, ViewersShareReports) {
  start();
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> good = 0;
  std::vector<std::thread> viewers;
  for (int i = 0; i < 10; ++i) {
    viewers.emplace_back([&] {
      for (int j = 0; j < 10; ++j) good += ask("GET /status.json").find("\"version\":\"1.2.3\"") != std::string::npos;
    });
  }
  for (std::thread& viewer : viewers) viewer.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(good, 100);
  EXPECT_GE(looks_, 1);
  EXPECT_LE(looks_, seconds / 0.333 + 1);
}

class PageToken : public ::testing::Test {
 protected:
  PageToken() {
    char folder[] = "/tmp/nvs-token-XXXXXX";
    if (mkdtemp(folder) != nullptr) path_ = std::string(folder) + "/token";
  }
  ~PageToken() override {
    unlink(path_.c_str());
    rmdir(path_.substr(0, path_.rfind('/')).c_str());
  }
  // What is read of such a file: the token, or the error.
  std::string read(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
    Result<std::string> token = read_page_token(path_);
    return token ? *token : token.error().text;
  }
  std::string path_;
};

TEST_F(PageToken, OneLineThatNobodyElseCanReadIsTaken) {
  EXPECT_EQ(read(std::string(kToken) + "\n"), kToken);
  EXPECT_EQ(read(std::string(256, 'x')), std::string(256, 'x'));
  for (const std::string& wrong : {std::string(), std::string("short\n"), std::string(257, 'x'), std::string("two lines of them\nhere\n"),
                                   std::string("with a blank in the middle")}) {
    const std::string text = read(wrong);
    EXPECT_NE(text.find("accepted: one line of 16 to 256"), std::string::npos) << text;
    EXPECT_NE(text.find(path_), std::string::npos) << text;
  }
  for (const mode_t mode : {mode_t{0644}, mode_t{0640}, mode_t{0602}})
    EXPECT_NE(read(kToken, mode).find("others can read or change it"), std::string::npos) << mode;
  unlink(path_.c_str());
  const Result<std::string> none = read_page_token(path_);
  ASSERT_FALSE(none);
  EXPECT_NE(std::string(none.error().text).find(path_), std::string::npos);
  EXPECT_FALSE(read_page_token("/tmp"));
}

}  // namespace
}  // namespace nvshare::scheduler
