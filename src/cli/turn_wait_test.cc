#include "cli/turn_wait.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

using protocol::admin::TurnReport;

constexpr int64_t kSecond = 1'000'000'000;

TurnReport train_runs() {
  TurnReport report;
  report.waits = true;
  report.waited_ns = 3 * kSecond;
  report.holder = "train";
  report.state = "running";
  report.held_ns = 8 * kSecond;
  report.left_ns = 12 * kSecond;
  return report;
}

TEST(TurnWait, SaysWhoHasTheGpuAndForHowLongYet) {
  const auto wait = turn_wait_of(train_runs(), 0);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->waited_ns, 3 * kSecond);
  EXPECT_EQ(wait->text, "waits for its turn on GPU 0: 'train' has it, running for 8 s, about 12 s left");
  EXPECT_FALSE(turn_wait_of({}, 0));
}

TEST(TurnWait, BetweenTwoQuestionsTimeGoesOn) {
  auto wait = turn_wait_of(train_runs(), 2 * kSecond);
  EXPECT_EQ(wait->waited_ns, 5 * kSecond);
  EXPECT_EQ(wait->text, "waits for its turn on GPU 0: 'train' has it, running for 10 s, about 10 s left");
  EXPECT_EQ(turn_wait_of(train_runs(), 12 * kSecond)->text, "waits for its turn on GPU 0: 'train' has it, running for 20 s");
}

TEST(TurnWait, DoesNotSayWhatIsNotKnown) {
  TurnReport report = train_runs();
  report.left_ns = 0;
  report.others = 1;
  report.gpu = 2;
  EXPECT_EQ(turn_wait_of(report, 0)->text, "waits for its turn on GPU 2: 'train' has it, running for 8 s, and 1 more");
  report.holder.clear();
  EXPECT_EQ(turn_wait_of(report, 0)->text, "waits for its turn on GPU 2");
}

// Of one's own programs, another run's among them.
TEST(TurnWait, OfOnesOwnItSaysWhatForWithoutNames) {
  protocol::admin::StatusReport own;
  const auto add = [&own](int32_t pid, const char* state, int64_t since_s, const char* waiting_for) {
    protocol::admin::ClientReport& client = own.clients.emplace_back();
    client.pid = pid;
    client.state = state;
    client.since_ns = since_s * kSecond;
    client.waiting_for = waiting_for;
  };
  const auto is_ours = [](int32_t pid) { return pid < 100; };
  EXPECT_FALSE(own_wait_of(own, is_ours));
  add(200, "waiting", 90, "its place in the queue");
  EXPECT_FALSE(own_wait_of(own, is_ours)) << "another run's";
  add(10, "idle", 200, "");
  add(11, "waiting", 3, "its place in the queue");
  add(12, "waiting", 8, "a neighbour's turn to end: it needs 160 MiB");
  ASSERT_TRUE(own_wait_of(own, is_ours));
  EXPECT_EQ(own_wait_of(own, is_ours)->waited_ns, 8 * kSecond);
  EXPECT_EQ(own_wait_of(own, is_ours)->text, "waits for a neighbour's turn to end: it needs 160 MiB");
  own.clients.back().waiting_for.clear();
  EXPECT_EQ(own_wait_of(own, is_ours)->text, "waits for its turn");
  add(13, "loading", 1, "");
  EXPECT_FALSE(own_wait_of(own, is_ours)) << "one of its programs has a turn";
}

TEST(TurnWait, ATerminalsLineIsRewrittenAndGoes) {
  TurnWaitLine line(true);
  EXPECT_EQ(line.next(TurnWait{kSecond / 2, "waits"}, 80), "");
  const std::string shown = line.next(TurnWait{2 * kSecond, "waits"}, 80);
  EXPECT_NE(shown.find("nvshare: waits; 2 s so far\033[?7h\0338"), std::string::npos) << shown;
  EXPECT_EQ(shown.find('\n'), std::string::npos);
  EXPECT_EQ(line.next(std::nullopt, 80), "\033[0J");
  EXPECT_EQ(line.next(std::nullopt, 80), "");
}

TEST(TurnWait, ElsewhereEachLongWaitHasOneLine) {
  TurnWaitLine line(false);
  EXPECT_EQ(line.next(TurnWait{4 * kSecond, "waits"}, 80), "");
  EXPECT_EQ(line.next(TurnWait{5 * kSecond, "waits"}, 80), "nvshare: waits\n");
  EXPECT_EQ(line.next(TurnWait{9 * kSecond, "waits"}, 80), "");
  EXPECT_EQ(line.next(TurnWait{6 * kSecond, "waits"}, 80), "nvshare: waits\n");  // another wait
  EXPECT_EQ(line.next(std::nullopt, 80), "");
}

}  // namespace
}  // namespace nvshare::cli
