// Viewers that wait for changes: let go at once after a quiet time, together where changes never end, and after their patience.
#include "scheduler/viewers/change_watch.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "scheduler/engine/visible_changes.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kMsNs = 1'000'000;

class ChangeWatchTest : public ::testing::Test {
 protected:
  // Runs the loop until `until_ms` after its first call.
  void run_for(int64_t ms) {
    Timer end(loop_, [this] { loop_.stop(); });
    end.arm(monotonic_ns() + ms * kMsNs);
    loop_.run();
  }
  ChangeWatch::Then note(int who) {
    return [this, who](uint64_t news) { let_go_.push_back({who, news != 0, monotonic_ns(), news}); };
  }
  static int64_t later(int64_t ms) { return monotonic_ns() + ms * kMsNs; }

  struct Gone {
    int who;
    bool news;
    int64_t at;
    uint64_t number;
  };
  EventLoop loop_;
  std::vector<uint64_t> announced_;
  ChangeWatch watch_{loop_, [this](uint64_t number) { announced_.push_back(number); }};
  std::vector<Gone> let_go_;
};

TEST_F(ChangeWatchTest, AChangeAfterAQuietTimeIsSeenAtOnce) {
  watch_.changed(7);
  watch_.wait(7, later(60'000), 0, note(1));
  EXPECT_TRUE(let_go_.empty()) << "nothing is new to it";
  watch_.wait(6, later(60'000), 0, note(2));
  ASSERT_EQ(let_go_.size(), 1u) << "it knows another number";
  EXPECT_EQ(let_go_[0].who, 2);
  run_for(60);
  watch_.changed(7);
  EXPECT_EQ(let_go_.size(), 1u) << "the same again is no news";
  watch_.changed(8);
  ASSERT_EQ(let_go_.size(), 2u);
  EXPECT_EQ(let_go_[1].who, 1);
  EXPECT_TRUE(let_go_[1].news);
  EXPECT_EQ(announced_, (std::vector<uint64_t>{7, 8}));
}

TEST_F(ChangeWatchTest, WhereChangesNeverEndWaitersGoTogetherAndSeldom) {
  watch_.changed(1);
  uint64_t number = 1;
  const int64_t begin = monotonic_ns();
  Timer changes(loop_, [&] {
    watch_.changed(++number);
    changes.arm(monotonic_ns() + kMsNs);
  });
  changes.arm(begin);
  std::function<void(int)> again = [&](int who) {
    watch_.wait(number, later(60'000), 0, [&, who](uint64_t news) {
      let_go_.push_back({who, news != 0, monotonic_ns(), news});
      again(who);
    });
  };
  for (int who = 0; who < 10; ++who) again(who);
  run_for(400);
  const auto rounds = static_cast<double>(let_go_.size()) / 10;
  EXPECT_GE(rounds, 1);
  EXPECT_LE(rounds, static_cast<double>(monotonic_ns() - begin) / ChangeWatch::kApartNs + 1) << number << " changes";
  EXPECT_LE(announced_.size(), rounds + 2);
}

TEST_F(ChangeWatchTest, PatienceEnds) {
  watch_.changed(3);
  const int64_t until = later(20);
  watch_.wait(3, until, 0, note(1));
  watch_.wait(3, later(60'000), 0, note(2));
  run_for(150);
  ASSERT_EQ(let_go_.size(), 1u);
  EXPECT_EQ(let_go_[0].who, 1);
  EXPECT_FALSE(let_go_[0].news);
  EXPECT_GE(let_go_[0].at, until);
  watch_.wait(3, monotonic_ns(), 0, note(3));
  EXPECT_EQ(let_go_.size(), 2u) << "which may be none";
}

// All at once they would have every processor for as long as they take to draw, and one report is to do for all.
TEST_F(ChangeWatchTest, TheyGoOneAfterTheOtherWithOneNumber) {
  watch_.changed(1);
  constexpr int kViewers = 6;
  for (int who = 0; who < kViewers; ++who) watch_.wait(1, later(60'000), 0, note(who));
  Timer change(loop_, [this] {
    watch_.changed(2);
    EXPECT_EQ(let_go_.size(), 1u) << "the first at once";
  });
  change.arm(later(60));
  run_for(200);
  ASSERT_EQ(let_go_.size(), static_cast<size_t>(kViewers));
  for (int who = 0; who < kViewers; ++who) {
    EXPECT_EQ(let_go_[static_cast<size_t>(who)].who, who);
    EXPECT_EQ(let_go_[static_cast<size_t>(who)].number, 2u);
    if (who > 0) {
      EXPECT_GE(let_go_[static_cast<size_t>(who)].at - let_go_[static_cast<size_t>(who) - 1].at, ChangeWatch::kBetweenNs / 2) << who;
    }
  }
}

// However many they are, they have gone before the next round.
TEST_F(ChangeWatchTest, AllGoWithinARound) {
  watch_.changed(1);
  for (size_t who = 0; who < ChangeWatch::kWaitersMax; ++who) watch_.wait(1, later(60'000), 0, note(static_cast<int>(who)));
  Timer change(loop_, [this] { watch_.changed(2); });
  change.arm(later(60));
  run_for(400);
  ASSERT_EQ(let_go_.size(), ChangeWatch::kWaitersMax);
  for (const Gone& gone : let_go_) EXPECT_EQ(gone.number, 2u);
}

// One report serves them: who would wait for a little longer goes with the first.
TEST_F(ChangeWatchTest, PatienceThatEndsSoonEndsWithAnothers) {
  watch_.changed(3);
  watch_.wait(3, later(20), 300 * kMsNs, note(1));
  watch_.wait(3, later(250), 300 * kMsNs, note(2));
  watch_.wait(3, later(250), 0, note(3));
  watch_.wait(3, later(60'000), 300 * kMsNs, note(4));
  run_for(150);
  ASSERT_EQ(let_go_.size(), 2u);
  EXPECT_EQ(let_go_[0].who + let_go_[1].who, 3);
  EXPECT_FALSE(let_go_[0].news);
  EXPECT_FALSE(let_go_[1].news);
}

TEST_F(ChangeWatchTest, MoreThanItsBoundDoNotWait) {
  watch_.changed(1);
  for (size_t who = 0; who < ChangeWatch::kWaitersMax; ++who) watch_.wait(1, later(60'000), 0, note(1));
  EXPECT_TRUE(let_go_.empty());
  watch_.wait(1, later(60'000), 0, note(2));
  ASSERT_EQ(let_go_.size(), 1u);
  EXPECT_EQ(let_go_[0].who, 2);
  EXPECT_FALSE(let_go_[0].news);
}

TEST(VisibleChanges, TurnsAndLimitsAreSeenAtOnceFiguresAreNot) {
  EXPECT_TRUE(is_visible(policy::Event(policy::LockRequested{1})));
  EXPECT_TRUE(is_visible(policy::Event(policy::TenantPriority{})));
  EXPECT_FALSE(is_visible(policy::Event(policy::MemoryChanged{}), {}));
  EXPECT_TRUE(is_visible(policy::Event(policy::Tick{}), {policy::SendDrop{}})) << "a turn ends by the clock";
  EXPECT_FALSE(is_visible(policy::Event(policy::Tick{}), {policy::SendContention{}}));
}

policy::ClientJoined joined(policy::ClientId client, policy::GpuId gpu, policy::TenantId tenant = 0) {
  policy::ClientJoined event{};
  event.client = client;
  event.gpu = gpu;
  event.tenant = tenant;
  return event;
}

TEST(VisibleChanges, AreOnTheGpusOfWhomTheyAreAbout) {
  ChangesOfGpus changes;
  EXPECT_EQ(changes.on(3), 0u);
  changes.note(joined(7, 0), {}, 2);
  changes.note(joined(8, 2), {}, 3);
  EXPECT_EQ(changes.on(0), 2u);
  EXPECT_EQ(changes.on(1), 0u);
  EXPECT_EQ(changes.on(2), 3u);
  changes.note(policy::LockRequested{7}, {policy::SendLock{7}}, 4);
  EXPECT_EQ(changes.on(0), 4u);
  EXPECT_EQ(changes.on(2), 3u);
  changes.note(policy::Tick{}, {policy::SendDrop{8}}, 5);
  EXPECT_EQ(changes.on(0), 4u);
  EXPECT_EQ(changes.on(2), 5u) << "whose turn ends by the clock";
  changes.note(policy::Tick{}, {policy::Note{policy::Note::Level::kInfo, 0, "", 1}}, 6);
  EXPECT_EQ(changes.on(1), 6u);
  changes.note(policy::ClientLeft{7, true}, {policy::SendLock{8}}, 7);
  EXPECT_EQ(changes.on(0), 7u) << "where it was";
  EXPECT_EQ(changes.on(2), 7u) << "and where another one runs now";
  changes.note(policy::Tick{}, {policy::SendDrop{7}}, 8);
  EXPECT_EQ(changes.on(0), 7u) << "it is known no more";
}

// Each program that starts is a tenant with settings of its own: they woke the viewers of all GPUs.
TEST(VisibleChanges, OfATenantAreWhereItsClientsAre) {
  ChangesOfGpus changes;
  changes.note(policy::TenantPriority{1, 5}, {}, 1);
  EXPECT_EQ(changes.on(0), 0u) << "it has no client yet";
  changes.note(joined(7, 1, 1), {}, 2);
  changes.note(joined(8, 1, 1), {}, 3);
  changes.note(joined(9, 3, 1), {}, 4);
  changes.note(joined(10, 0, 2), {}, 5);
  changes.note(policy::ComputeLimit{1, 50}, {}, 6);
  for (const auto& [gpu, number] : {std::pair{0u, 5u}, {1u, 6u}, {2u, 0u}, {3u, 6u}}) EXPECT_EQ(changes.on(gpu), number) << gpu;
  changes.note(policy::ClientLeft{9, true}, {}, 7);
  changes.note(policy::ClientLeft{7, true}, {}, 8);
  changes.note(policy::TenantSuspended{1, true}, {}, 9);
  for (const auto& [gpu, number] : {std::pair{0u, 5u}, {1u, 9u}, {3u, 7u}}) EXPECT_EQ(changes.on(gpu), number) << gpu;
  changes.note(policy::ClientLeft{8, true}, {}, 10);
  changes.note(policy::TenantPriority{1, 6}, {}, 11);
  EXPECT_EQ(changes.on(1), 10u) << "it has no client any more";
}

TEST(VisibleChanges, OfAllAreOnAllGpus) {
  ChangesOfGpus changes;
  changes.note(policy::ConfigChanged{}, {}, 4);
  EXPECT_EQ(changes.on(0), 4u);
  changes.note_on_all(5);
  EXPECT_EQ(changes.on(1), 5u);
}

}  // namespace
}  // namespace nvshare::scheduler
