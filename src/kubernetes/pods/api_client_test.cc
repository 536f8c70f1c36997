// Requests on a loop: what is answered, what is not, and that nothing else on the loop waits for either.
#include "kubernetes/pods/api_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>

#include "base/fd.h"
#include "kubernetes/pods/test_api_server.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes {
namespace {

// Takes connections and never says anything, as one that is stopped does.
class SilentServer {
 public:
  SilentServer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    socklen_t size = sizeof address;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  std::string url() const { return "https://127.0.0.1:" + std::to_string(port_); }

 private:
  FileDescriptor listener_;
  int port_ = 0;
};

class ApiClientTest : public testing::Test {
 protected:
  ApiClientTest() {
    std::string name = (std::filesystem::temp_directory_path() / "nvs-client-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::filesystem::create_directories(folder_ + "/empty");
  }
  ~ApiClientTest() override {
    close();
    std::filesystem::remove_all(folder_);
  }
  void open(const ApiServerAddress& address) {
    loop_.call([&] { client_.emplace(loop_.loop(), address); });
  }
  void close() {
    loop_.call([&] { client_.reset(); });
  }
  std::future<Result<ApiReply>> send(ApiRequest request, ApiPatience patience, ApiTake take = nullptr) {
    const auto answer = std::make_shared<std::promise<Result<ApiReply>>>();
    loop_.call([&] {
      client_->send(
          std::move(request), patience, [answer](Result<ApiReply> reply) { answer->set_value(std::move(reply)); }, take);
    });
    return answer->get_future();
  }
  // With the token and the CA of one that answers.
  ApiServerAddress address_of(const SilentServer& silent) {
    ApiServerAddress address = TestApiServer(folder_).address();
    address.url = silent.url();
    return address;
  }

  std::string folder_;
  LoopThread loop_;
  std::optional<ApiClient> client_;
};

constexpr char kPods[] = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1";

TEST_F(ApiClientTest, OneRequestAfterAnotherIsAnswered) {
  TestApiServer server(folder_);
  server.add_pod("train", {{"nvshare.com/gpu", 1}});
  open(server.address());
  for (int i = 0; i < 20; ++i) {
    auto reply = send(ApiRequest::get(kPods), {}).get();
    ASSERT_TRUE(reply) << reply.error().text;
    EXPECT_EQ(reply->status, 200);
    EXPECT_NE(reply->body.find("train"), std::string::npos);
  }
  EXPECT_EQ(send(ApiRequest::get("/no/such/thing"), {}).get()->status, 404);
}

TEST_F(ApiClientTest, WhatIsTakenIsNotInTheReplyAndWhoTakesMayEndIt) {
  TestApiServer server(folder_);
  server.add_pod("train", {{"nvshare.com/gpu", 1}});
  open(server.address());
  std::string taken;
  const auto reply = send(ApiRequest::get(kPods), {}, [&](std::string_view bytes) { return !taken.append(bytes).empty(); }).get();
  ASSERT_TRUE(reply) << reply.error().text;
  EXPECT_EQ(reply->body, "");
  EXPECT_NE(taken.find("train"), std::string::npos);
  EXPECT_FALSE(send(ApiRequest::get(kPods), {}, [](std::string_view) { return false; }).get());
  EXPECT_FALSE(send(ApiRequest::get(kPods), {}, [](std::string_view) -> bool { throw std::runtime_error("of a listener"); }).get());
  EXPECT_TRUE(send(ApiRequest::get(kPods), {}).get()) << "and the next one is answered";
}

TEST_F(ApiClientTest, ASilentServerIsAnErrorInTimeAndTheLoopIsFreeMeanwhile) {
  const SilentServer server;
  open(address_of(server));
  auto reply = send(ApiRequest::get(kPods), {60'000, 500});
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) loop_.call([] {});
  EXPECT_EQ(reply.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "asked for half a second";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(400));
  const auto answer = reply.get();
  ASSERT_FALSE(answer);
  EXPECT_NE(std::string(answer.error().text).find("nothing came for 500 ms"), std::string::npos) << answer.error().text;
  EXPECT_FALSE(send(ApiRequest::get(kPods), {100, 60'000}).get()) << "the whole request has a limit, too";
}

TEST_F(ApiClientTest, AClientEndsWithARequestUnderWay) {
  const SilentServer server;
  open(address_of(server));
  auto reply = send(ApiRequest::get(kPods), {60'000, 60'000});
  const auto begin = std::chrono::steady_clock::now();
  close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_THROW((void)reply.get(), std::future_error) << "there is no answer";
}

TEST_F(ApiClientTest, WithoutATokenARequestFails) {
  open({"https://127.0.0.1:1", folder_ + "/empty"});
  EXPECT_FALSE(send(ApiRequest::get(kPods), {}).get());
}

}  // namespace
}  // namespace nvshare::kubernetes
