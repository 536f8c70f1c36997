// Limits of pods on their way to the scheduler: what is sent, what waits for a scheduler, what another one gets.
#include "kubernetes/pods/limit_publisher.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "kubernetes/pods/test_listening_scheduler.h"
#include "protocol/paths.h"

namespace nvshare::kubernetes {
namespace {

class LimitPublisherTest : public testing::Test {
 protected:
  LimitPublisherTest() {
    std::string name = (std::filesystem::temp_directory_path() / "nvshare-publisher-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    publisher_.emplace(loop_, folder_);
  }
  ~LimitPublisherTest() override {
    publisher_.reset();
    scheduler_.reset();
    std::filesystem::remove_all(folder_);
  }

  static protocol::admin::PodRequest pod(const std::string& uid, int core) {
    protocol::admin::PodRequest pod;
    pod.uid = uid;
    pod.gpu_core_limit = core;
    return pod;
  }
  static bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 30'000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return holds();
  }
  // The connection of before ends, as that of a scheduler that ends does.
  void start_scheduler() {
    scheduler_.reset();
    scheduler_.emplace(folder_);
  }
  std::string limits(const std::string& uid) { return scheduler_->limits_of(uid); }

  std::string folder_;
  std::mutex wanted_mutex_;
  LimitPublisher::Pods wanted_;  // guarded by it
  LoopThread loop_;
  std::optional<ListeningScheduler> scheduler_;
  std::optional<LimitPublisher> publisher_;
};

TEST_F(LimitPublisherTest, OnlyTheDifferenceIsSent) {
  start_scheduler();
  publisher_->set_wanted({pod("a1", 30), pod("b2", 40)}, false);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_EQ(limits("a1"), "0/30");
  EXPECT_EQ(limits("b2"), "0/40");
  const int requests = scheduler_->requests();
  const int pods = scheduler_->pods_received();
  publisher_->set_wanted({pod("a1", 30), pod("b2", 40)}, false);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_EQ(scheduler_->requests(), requests) << "nothing has changed";
  publisher_->set_wanted({pod("a1", 30), pod("b2", 50)}, false);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_EQ(limits("b2"), "0/50");
  EXPECT_EQ(scheduler_->pods_received(), pods + 1) << "the other pod is as it was";
  publisher_->set_wanted({pod("b2", 50)}, false);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_EQ(limits("a1"), "");
  EXPECT_EQ(limits("b2"), "0/50");
  EXPECT_EQ(scheduler_->pods_received(), pods + 2);
  EXPECT_EQ(scheduler_->connections(), 1);
  EXPECT_FALSE(scheduler_->has_complete_list()) << "others may publish limits of other pods";
}

// A scheduler keeps limits over its restart, and the next one may still have those of pods that ended in between. The device plugin's
// former sender forgot such pods until its list was complete.
TEST_F(LimitPublisherTest, PodsThatEndWhileThereIsNoSchedulerAreGoneForTheNextOne) {
  start_scheduler();
  publisher_->set_wanted({pod("a1", 30), pod("b2", 40)}, false);
  ASSERT_TRUE(publisher_->publish());
  scheduler_->refuse_connections();
  publisher_->set_wanted({pod("b2", 40)}, false);
  EXPECT_FALSE(publisher_->publish()) << "no scheduler";
  EXPECT_EQ(limits("a1"), "0/30");
  scheduler_->accept_connections();
  EXPECT_TRUE(eventually([&] { return limits("a1").empty(); }));
  EXPECT_EQ(limits("b2"), "0/40");
}

// The DRA driver's former sender could not say that its pods are all of the node.
TEST_F(LimitPublisherTest, ACompleteListIsSentOnceToEachScheduler) {
  publisher_->set_wanted({pod("a1", 30)}, false);
  EXPECT_FALSE(publisher_->publish()) << "there is no scheduler";
  start_scheduler();
  ASSERT_TRUE(eventually([&] { return limits("a1") == "0/30"; }));
  EXPECT_FALSE(scheduler_->has_complete_list());
  publisher_->set_wanted({pod("a1", 30)}, true);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_TRUE(scheduler_->has_complete_list());
  EXPECT_EQ(scheduler_->connections(), 1);
  scheduler_->forget_requests();
  publisher_->set_wanted({pod("a1", 30), pod("b2", 40)}, true);
  ASSERT_TRUE(publisher_->publish());
  EXPECT_FALSE(scheduler_->has_complete_list()) << "it knows";
  start_scheduler();
  EXPECT_TRUE(eventually([&] { return scheduler_->has_complete_list() && limits("b2") == "0/40"; }));
}

TEST_F(LimitPublisherTest, NothingIsSentBeforeSomethingIsWanted) {
  start_scheduler();
  EXPECT_EQ(scheduler_->connections(), 0);
  publisher_->set_wanted({}, true);
  EXPECT_TRUE(eventually([&] { return scheduler_->has_complete_list(); })) << "no pod has a limit";
}

// A scheduler that takes connections and says nothing, as one that is stopped does.
class SilentScheduler {
 public:
  explicit SilentScheduler(const std::string& folder) : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder + protocol::kAdminSocket;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    unlink(path.c_str());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
  }

 private:
  FileDescriptor listener_;
};

// More than the socket takes at once, so that sending waits as well. The former sender's thread waited in send() for good.
TEST_F(LimitPublisherTest, NothingElseOnTheLoopWaitsForASchedulerThatIsSilent) {
  const SilentScheduler silent(folder_);
  LimitPublisher::Pods pods;
  for (int i = 0; i < 20'000; ++i) pods.push_back(pod(std::string(36, 'a') + std::to_string(i), 30));
  LimitPublisher another(loop_, folder_), third(loop_, folder_);  // each has a connection, of which the listener queues but one
  const auto begin = std::chrono::steady_clock::now();
  for (LimitPublisher* publisher : {&*publisher_, &another, &third}) publisher->set_wanted(pods, true);
  for (int i = 0; i < 100; ++i) {
    loop_.call([] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "an answer may take 5 s";
}

TEST_F(LimitPublisherTest, ASilentSchedulerIsAnErrorOfPublishAndTheNextOneGetsAll) {
  {
    const SilentScheduler silent(folder_);
    publisher_->set_wanted({pod("a1", 30)}, true);
    EXPECT_FALSE(publisher_->publish());
  }
  start_scheduler();
  EXPECT_TRUE(eventually([&] { return limits("a1") == "0/30" && scheduler_->has_complete_list(); }));
}

TEST_F(LimitPublisherTest, ManyPublishAtOnceAndEachIsAnsweredOnceItsStateIsInForce) {
  start_scheduler();
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const std::string uid = std::to_string(i) + "-" + std::to_string(round);
        {
          std::lock_guard lock(wanted_mutex_);
          wanted_.push_back(pod(uid, 30));
          publisher_->set_wanted(wanted_, false);
        }
        if (!publisher_->publish() || limits(uid) != "0/30") ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace nvshare::kubernetes
