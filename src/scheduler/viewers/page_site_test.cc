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
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "protocol/admin.h"
#include "scheduler/viewers/http_endpoint.h"

namespace nvshare::scheduler {
namespace {

constexpr char kToken[] = "a-token-of-the-tests";

class PageSiteTest : public ::testing::Test {
 protected:
  void start(const std::string& token = "", int64_t feed_lives_ns = kPageFeedLivesNs) {
    HttpEndpoint::Options options;
    options.page_feed_lives_ns = feed_lives_ns;
    options.address = "127.0.0.1:0";
    options.page = true;
    options.page_token = token;
    auto endpoint = HttpEndpoint::serve(
        options, loop_,
        [this](int64_t age_max_ns, uint64_t changes_min, SharedReports::Then then) {
          reports_.ask(age_max_ns, changes_min, std::move(then));
        },
        [this](uint64_t after) { return past(after); });
    ASSERT_TRUE(endpoint) << endpoint.error().text;
    endpoint_ = std::move(*endpoint);
    report_.version = "1.2.3";
    report_.tenants.emplace_back().name = "<script>alert(1)</script>";
    thread_ = std::thread([this] { loop_.run(); });
  }
  // Of three parts, the last of them with one client's sighting.
  std::optional<TraceRing::Copied> past(uint64_t after) {
    if (has_many_clients_) return std::nullopt;
    ++past_reads_;
    TraceRing::Copied copied;
    copied.begins = after == 0 || past_is_lost_;
    copied.now = 5'000'000'000;
    copied.next = after + 7;
    copied.more = after < 14;
    policy::ClientGlimpse seen{};
    seen.client = 31;
    if (!copied.more) copied.entries.push_back({4'000'000'000, TraceSighting{4'000'000'000, seen, ""}});
    return copied;
  }
  void TearDown() override {
    endpoint_.reset();
    if (!thread_.joinable()) return;
    loop_.post([this] { loop_.stop(); });
    thread_.join();
  }

  // A connection that asks so; it waits twenty seconds at most for each part.
  FileDescriptor asks(const std::string& line, const std::string& headers = "Host: 127.0.0.1:9402\r\n", int receive_buffer = 0) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const std::string url = endpoint_->url();
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{20, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_buffer != 0) setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
    const std::string request = line + " HTTP/1.1\r\n" + headers + "\r\n";
    if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return {};
    return socket;
  }
  // All of the answer to such a request line and headers.
  std::string ask(const std::string& line, const std::string& headers = "Host: 127.0.0.1:9402\r\n") {
    const FileDescriptor socket = asks(line, headers);
    std::string answer;
    char part[4096];
    for (ssize_t got = 0; (got = recv(socket.get(), part, sizeof part, 0)) > 0;) answer.append(part, static_cast<size_t>(got));
    return answer;
  }
  // The reports of an answer that goes on, one after the other.
  class Follower {
   public:
    explicit Follower(FileDescriptor socket) : socket_(std::move(socket)) {}
    // Nullopt: the server has ended it, or it says nothing for twenty seconds.
    std::optional<protocol::admin::StatusReport> next() {
      const std::optional<std::string> line = until("\n");
      if (!line) return std::nullopt;
      auto report = protocol::admin::decode_status(*line);
      EXPECT_TRUE(report) << report.error().text;
      return report ? std::optional(std::move(*report)) : std::nullopt;
    }
    std::string head() { return until("\r\n\r\n").value_or(""); }

   private:
    std::optional<std::string> until(const std::string& end) {
      char part[4096];
      size_t at = 0;
      while ((at = rest_.find(end)) == std::string::npos) {
        const ssize_t got = recv(socket_.get(), part, sizeof part, 0);
        if (got <= 0) return std::nullopt;
        rest_.append(part, static_cast<size_t>(got));
      }
      const std::string text = rest_.substr(0, at);
      rest_.erase(0, at + end.size());
      return text;
    }
    FileDescriptor socket_;
    std::string rest_;
  };
  Follower follow(const std::string& query = "") {
    Follower follower(asks("GET /status.jsonl" + query));
    EXPECT_EQ(status_of(follower.head()), "HTTP/1.1 200 OK");
    return follower;
  }
  void change(uint64_t number, const ReportDesk::OnGpus& on_gpus = {}) {
    loop_.post([this, number, on_gpus] {
      report_.changes = number;
      endpoint_->changed(number, on_gpus);
    });
  }
  // While it lives the loop does nothing; it has that number of changes then.
  class BusyLoop {
   public:
    explicit BusyLoop(PageSiteTest& test, uint64_t number) {
      std::promise<void> begun;
      test.loop_.post([&, over = over_.get_future().share()] {
        test.report_.changes = number;
        begun.set_value();
        over.wait();
      });
      begun.get_future().wait();
      test.endpoint_->changed(number);
    }
    ~BusyLoop() { over_.set_value(); }

   private:
    std::promise<void> over_;
  };
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
  std::atomic<int> past_reads_ = 0;
  std::atomic<bool> has_many_clients_ = false, past_is_lost_ = false;
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

using Clock = std::chrono::steady_clock;

TEST_F(PageSiteTest, WhoFollowsIsToldOfAllAndThenOfWhatIsNew) {
  start();
  report_.epoch = 7;
  change(7);
  Follower viewer = follow();
  auto report = viewer.next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 0u);
  EXPECT_EQ(report->changes, 7u);
  EXPECT_EQ(report->tenants.size(), 1u);
  loop_.post([this] {
    report_.clients.emplace_back().id = 5;
    report_.clients.back().changed = 9;
    report_.tenants.back().changed = 3;
  });
  change(9);
  report = viewer.next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 7u);
  EXPECT_EQ(report->changes, 9u);
  EXPECT_EQ(report->clients.size(), 1u);
  EXPECT_TRUE(report->tenants.empty()) << "the viewer has it";
  const auto begin = Clock::now();
  report = viewer.next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 0u) << "and after three seconds of all again, with its amounts";
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(2000));
}

TEST_F(PageSiteTest, WhoHasAReportBeginsWithWhatIsNew) {
  start();
  change(9);
  auto report = follow("?changes=7").next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 7u);
  const auto begin = Clock::now();
  report = follow("?changes=9").next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 0u) << "nothing was new";
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(2900));
  report = follow("?changes=nine").next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 0u) << "no number: as who has none";
}

// Beside changes on other GPUs one on these is waited for.
TEST_F(PageSiteTest, WhatIsNewOnTheNamedGpusIsWaitedFor) {
  start();
  change(9, {{"GPU-a", 7}, {"GPU-b", 9}});
  const auto is_news = [&](const std::string& gpus) {
    const auto report = follow("?changes=7&gpus=" + gpus).next();
    return report && report->since == 7;
  };
  EXPECT_TRUE(is_news("GPU-b"));
  EXPECT_TRUE(is_news("GPU-a,GPU-b"));
  std::string many, few;
  for (int i = 0; i < 65; ++i) (i < 64 ? few : many) += "GPU-a,";
  EXPECT_TRUE(is_news(few + many)) << "more than a page names: as if it named none";
  EXPECT_TRUE(is_news("GPU-a,,GPU-a"));
  EXPECT_TRUE(is_news(",,,,"));
  EXPECT_TRUE(is_news("GPU-of-another-day")) << "what is not known may have changed";
  EXPECT_FALSE(is_news("GPU-a"));
  EXPECT_FALSE(is_news("")) << "no GPU is on the screen";
  Follower viewer = follow("?changes=7&gpus=GPU-a");
  change(10, {{"GPU-a", 7}, {"GPU-b", 10}});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  change(11, {{"GPU-a", 11}, {"GPU-b", 10}});
  const auto report = viewer.next();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->since, 7u);
  EXPECT_EQ(report->changes, 11u);
}

TEST_F(PageSiteTest, WhoMayNotReadFollowsNothing) {
  start(kToken);
  EXPECT_EQ(status_of(ask("GET /status.jsonl")), "HTTP/1.1 401 Unauthorized");
  EXPECT_EQ(status_of(ask("GET /status.jsonl?changes=7&gpus=GPU-a")), "HTTP/1.1 401 Unauthorized");
  EXPECT_EQ(looks_, 0);
  Follower viewer(asks("GET /status.jsonl", std::string("Host: node1\r\nAuthorization: Bearer ") + kToken + "\r\n"));
  EXPECT_EQ(status_of(viewer.head()), "HTTP/1.1 200 OK");
  EXPECT_TRUE(viewer.next());
}

TEST_F(PageSiteTest, OfAFeedTheHeadAloneEnds) {
  start();
  EXPECT_EQ(status_of(ask("HEAD /status.jsonl")), "HTTP/1.1 200 OK");
  EXPECT_EQ(status_of(ask("GET /status.jsonl", "Host: evil.example\r\n")), "HTTP/1.1 403 Forbidden");
}

// Following holds no connections that others need: of one address only so many do, and the next is told of all once.
TEST_F(PageSiteTest, ViewersThatFollowKeepNobodyOut) {
  start();
  change(7);
  constexpr int kViewers = 40, kMost = 16;
  std::vector<Follower> viewers;
  for (int i = 0; i < kViewers; ++i) {
    viewers.push_back(follow(i < kMost ? "" : "?changes=7"));
    const auto report = viewers.back().next();
    ASSERT_TRUE(report) << i;
    EXPECT_EQ(report->since, 0u) << "of all, whatever it has: " << i;
  }
  for (int i = kMost; i < kViewers; ++i) EXPECT_FALSE(viewers[static_cast<size_t>(i)].next()) << "it has ended: " << i;
  EXPECT_EQ(status_of(ask("GET /page.css")), "HTTP/1.1 200 OK");
  change(8);
  for (int i = 0; i < kMost; ++i) EXPECT_TRUE(viewers[static_cast<size_t>(i)].next()) << i;
  {
    const BusyLoop busy(*this, 9);
    std::string answer;
    for (int i = 0; i < 20 && answer.find(" 503 ") == std::string::npos; ++i)
      answer = ask("GET /status.jsonl?changes=9");  // one is new enough
    EXPECT_EQ(status_of(answer), "HTTP/1.1 503 Service Unavailable");
    EXPECT_NE(body_of(answer).find("too busy"), std::string::npos);
  }
  viewers.clear();
  Follower later = follow();
  ASSERT_TRUE(later.next());
  EXPECT_TRUE(later.next()) << "their places are free again";
}

// Once the scheduler has time: not with the next report of all.
TEST_F(PageSiteTest, NewsThatCouldNotBeGotAreNotForgotten) {
  start();
  change(1);
  Follower viewer = follow();
  ASSERT_TRUE(viewer.next());
  uint64_t since = 0;
  for (uint64_t number = 2, tries = 0; tries < 5 && since == 0; ++tries) {  // where the machine is slow all may be due first
    std::optional<protocol::admin::StatusReport> report;
    do {  // two of them: then all is due in six seconds
      change(number++);
      report = viewer.next();
      ASSERT_TRUE(report);
    } while (report->since == 0);
    change(number++);
    ASSERT_TRUE(viewer.next());
    {
      const BusyLoop busy(*this, number++);
      ask("GET /page.css");  // answered once the server has waited for a report
    }
    report = viewer.next();
    ASSERT_TRUE(report);
    since = report->since;
  }
  EXPECT_NE(since, 0u);
}

// A reader that does not read costs one part and the kernel's buffer, and is ended; nobody else waits for it, and nothing is made for it.
TEST_F(PageSiteTest, WhoDoesNotReadIsEnded) {
  start();
  constexpr size_t kClients = 2000, kNameBytes = 500;
  loop_.post([this] {
    report_.clients.resize(kClients);
    for (protocol::admin::ClientReport& client : report_.clients) client.program.assign(kNameBytes, 'x');
  });
  uint64_t number = 7;
  change(number++);
  const auto files = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  const auto before = files();
  char part[65536];
  bool is_quick = false;
  for (int tries = 0; tries < 5 && !is_quick; ++tries) {  // others may have the processor
    const FileDescriptor slow = asks("GET /status.jsonl", "Host: 127.0.0.1\r\n", 4096);
    std::string there;
    while (there.find("xxx") == std::string::npos) {  // of its report: there is more than the kernel takes
      const ssize_t got = recv(slow.get(), part, sizeof part, MSG_PEEK);
      ASSERT_GT(got, 0);
      there.assign(part, static_cast<size_t>(got));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int looks = looks_;
    for (int i = 0; i < 20; ++i) {
      change(number++);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(looks_, looks);
    const auto begin = Clock::now();
    EXPECT_TRUE(follow().next());
    is_quick = Clock::now() - begin < std::chrono::seconds(3);
    // The server's socket is closed.
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (files() > before + 1 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(files(), before + 1);
    // What the kernel had is still there, and then its end; a whole part is not.
    size_t bytes = 0;
    for (ssize_t got = 0; (got = recv(slow.get(), part, sizeof part, 0)) > 0;) bytes += static_cast<size_t>(got);
    EXPECT_LT(bytes, kClients * kNameBytes / 2);
  }
  EXPECT_TRUE(is_quick);
}

// A browser has few connections to an address for all of its tabs.
TEST_F(PageSiteTest, AFeedEndsForOthersToHaveATurn) {
  start("", 200'000'000);
  Follower viewer = follow();
  EXPECT_TRUE(viewer.next());
  EXPECT_FALSE(viewer.next());
}

// What it says besides is not kept.
TEST_F(PageSiteTest, WhoFollowsAndGoesOnTalkingIsEnded) {
  start();
  const FileDescriptor talks = asks("GET /status.jsonl");
  const std::string more(1024, 'x');
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) {
    ended = send(talks.get(), more.data(), more.size(), MSG_NOSIGNAL) < 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(ended);
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

TEST_F(PageSiteTest, WhatTheSchedulerRemembersIsToldInLinesAndAtMostOnceASecond) {
  start();
  const std::string answer = ask("GET /past.jsonl");
  EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_EQ(std::count(body.begin(), body.end(), '\n'), 3) << body;  // the release, the client, the time until which it went on
  EXPECT_NE(body.find("\"client\":31"), std::string::npos) << body;
  EXPECT_NE(body.find("\"Tick\""), std::string::npos) << body;
  EXPECT_EQ(past_reads_, 3);
  const int64_t began = monotonic_ns();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ask("GET /past.jsonl").substr(answer.find("\r\n\r\n") + 4), body);
  EXPECT_LE(past_reads_, 3 + 3 * (1 + (monotonic_ns() - began) / 1'000'000'000));
}

TEST_F(PageSiteTest, APastOfTooManyClientsIsNone) {
  start();
  has_many_clients_ = true;
  const std::string answer = ask("GET /past.jsonl");
  EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), "");
  EXPECT_EQ(past_reads_, 0);
}

TEST_F(PageSiteTest, APastThatWentOnFasterThanItWasReadIsNone) {
  start();
  past_is_lost_ = true;
  const std::string answer = ask("GET /past.jsonl");
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), "");
  EXPECT_EQ(past_reads_, 2);
}

TEST_F(PageSiteTest, ThePastIsForThoseWithTheToken) {
  start(kToken);
  EXPECT_NE(ask("GET /past.jsonl").find("401"), std::string::npos);
  EXPECT_EQ(past_reads_, 0);
  EXPECT_NE(ask("GET /past.jsonl", std::string("Host: x\r\nAuthorization: Bearer ") + kToken + "\r\n").find("200 OK"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::scheduler
