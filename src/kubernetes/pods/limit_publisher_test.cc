// Limits of pods on their way to the scheduler: what is sent, what waits for a scheduler, what another one gets.
#include "kubernetes/pods/limit_publisher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "kubernetes/pods/test_listening_scheduler.h"

namespace nvshare::kubernetes {
namespace {

class LimitPublisherTest : public testing::Test {
 protected:
  LimitPublisherTest() {
    std::string name = (std::filesystem::temp_directory_path() / "nvshare-publisher-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    publisher_.emplace(folder_);
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

}  // namespace
}  // namespace nvshare::kubernetes
