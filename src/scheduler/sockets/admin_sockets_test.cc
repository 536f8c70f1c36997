// The administrator's sockets, on a listener and a loop of their own.
#include "scheduler/sockets/admin_sockets.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/log.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

class AdminSocketsTest : public ::testing::Test {
 protected:
  AdminSocketsTest() {
    set_log_level("error");
    address_.sun_family = AF_UNIX;
    std::strncpy(address_.sun_path, (folder_.path() + "/socket").c_str(), sizeof address_.sun_path - 1);
  }
  ~AdminSocketsTest() override {
    loop_.post([this] {
      sockets_.reset();
      loop_.stop();
    });
    if (thread_.joinable()) thread_.join();
  }
  // Answers "short" at once, "long" later by a text of its own, and anything else later by a text that all have.
  void start(AdminSockets::Bounds bounds = {}) {
    FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    ASSERT_EQ(listen(listener.get(), 8), 0);
    const auto answer = [this](std::string_view request, AdminSockets::Later later) -> std::optional<std::string> {
      if (request == "short") return "short\n";
      const AdminSockets::Text text = request == "long" ? std::make_shared<const std::string>(*line_) : line_;
      loop_.post([later = std::move(later), text] { later(text); });
      return std::nullopt;
    };
    sockets_ = std::make_unique<AdminSockets>(loop_, std::move(listener), answer, bounds);
    thread_ = std::thread([this] { loop_.run(); });
  }
  FileDescriptor ask(const std::string& requests) const {
    FileDescriptor admin(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(admin.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_EQ(send(admin.get(), requests.data(), requests.size(), MSG_NOSIGNAL), static_cast<ssize_t>(requests.size()));
    return admin;
  }
  // So many lines, or what there is until the connection ends.
  static std::string read(const FileDescriptor& admin, std::ptrdiff_t lines) {
    std::string answers;
    std::vector<char> part(1 << 20);
    while (lines > 0) {
      const ssize_t got = recv(admin.get(), part.data(), part.size(), 0);
      if (got <= 0) break;
      answers.append(part.data(), static_cast<size_t>(got));
      lines -= std::count(part.begin(), part.begin() + got, '\n');
    }
    return answers;
  }
  // The first of it is there; the rest does not fit the socket.
  static void await_answer(const FileDescriptor& admin) {
    char first;
    ASSERT_EQ(recv(admin.get(), &first, 1, MSG_PEEK), 1);
  }

  const AdminSockets::Text line_ = std::make_shared<const std::string>(std::string(size_t{20} << 20, 'x') + "\n");
  TestFolder folder_;
  sockaddr_un address_{};
  EventLoop loop_;
  std::unique_ptr<AdminSockets> sockets_;
  std::thread thread_;
};

// The processor time of the loop's thread while no descriptor is to be had. It turned round and round until one was.
TEST_F(AdminSocketsTest, WithoutDescriptorsItAsksNowAndThen) {
#ifdef NVSHARE_SANITIZED
  GTEST_SKIP() << "the undefined behaviour sanitizer itself needs descriptors to look at memory";
#endif
  start();
  EXPECT_EQ(read(ask("short\n"), 1), "short\n");
  FileDescriptor admin(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;  // fewer than are open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_EQ(connect(admin.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
  ASSERT_EQ(send(admin.get(), "short\n", 6, MSG_NOSIGNAL), 6);
  clockid_t clock;
  ASSERT_EQ(pthread_getcpuclockid(thread_.native_handle(), &clock), 0);
  const auto used_ms = [clock] {
    timespec time{};
    clock_gettime(clock, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  const int64_t began = used_ms();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(used_ms() - began, 100);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(read(admin, 1), "short\n");
}

// With thousands of clients `status` is longer than what a reader may leave unread otherwise.
TEST_F(AdminSocketsTest, ALongAnswerArrivesWholeAndBeforeTheNext) {
  start();
  const std::string answers = read(ask("short\nlong\nshort\nlong\nshort\n"), 5);  // all at once
  const std::string expected = "short\n" + *line_ + "short\n" + *line_ + "short\n";
  EXPECT_EQ(answers.size(), expected.size());
  EXPECT_TRUE(answers == expected);
}

TEST_F(AdminSocketsTest, AReaderThatTakesNothingIsLeftAfterAWhileAndOneThatIsSlowIsNot) {
  start({2'000'000'000});
  const FileDescriptor idle = ask("");
  const FileDescriptor never = ask("long\n"), slow = ask("long\n");
  await_answer(never);
  std::string answer;
  std::vector<char> part(1 << 18);
  while (answer.size() < line_->size()) {  // for longer than there is patience
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    const ssize_t got = recv(slow.get(), part.data(), part.size(), 0);
    if (got <= 0) break;
    answer.append(part.data(), static_cast<size_t>(got));
  }
  EXPECT_TRUE(answer == *line_);
  EXPECT_LT(read(never, 1).size(), line_->size());
  EXPECT_EQ(send(idle.get(), "short\n", 6, MSG_NOSIGNAL), 6);
  EXPECT_EQ(read(idle, 1), "short\n") << "nothing was to be read from it";
}

TEST_F(AdminSocketsTest, ReadersThatTakeNothingHoldNoMoreThanTheBound) {
  AdminSockets::Bounds bounds;
  bounds.held_bytes_max = size_t{50} << 20;
  start(bounds);
  std::vector<FileDescriptor> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(ask("same\n"));  // one text, however many have it
    await_answer(readers.back());
  }
  for (int i = 0; i < 3; ++i) {
    readers.push_back(ask("long\n"));
    await_answer(readers.back());
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    const bool is_whole = read(readers[i], 1).size() == line_->size();
    EXPECT_EQ(is_whole, i >= 5) << i;  // the first ended, all that hold their text with it, and one more
  }
}

}  // namespace
}  // namespace nvshare::scheduler
