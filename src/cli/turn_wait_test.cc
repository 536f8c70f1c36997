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
  EXPECT_EQ(wait->text, "GPU 0: 'train' has it, about 12 s left, running for 8 s");
  EXPECT_FALSE(turn_wait_of({}, 0));
}

TEST(TurnWait, BetweenTwoQuestionsTimeGoesOn) {
  auto wait = turn_wait_of(train_runs(), 2 * kSecond);
  EXPECT_EQ(wait->waited_ns, 5 * kSecond);
  EXPECT_EQ(wait->text, "GPU 0: 'train' has it, about 10 s left, running for 10 s");
  EXPECT_EQ(turn_wait_of(train_runs(), 12 * kSecond)->text, "GPU 0: 'train' has it, running for 20 s");
}

TEST(TurnWait, DoesNotSayWhatIsNotKnown) {
  TurnReport report = train_runs();
  report.left_ns = 0;
  report.others = 1;
  report.gpu = 2;
  EXPECT_EQ(turn_wait_of(report, 0)->text, "GPU 2: 'train' and 1 more have it, running for 8 s");
  report.holder.clear();
  EXPECT_EQ(turn_wait_of(report, 0)->text, "GPU 2");
}

TEST(TurnWait, WhatMattersFitsIntoEightyColumns) {
  TurnReport report = train_runs();
  report.holder = std::string(200, 'x');
  const auto wait = turn_wait_of(report, 0);
  EXPECT_EQ(wait->text, "GPU 0: '" + std::string(18, 'x') + "..' has it, about 12 s left, running for 8 s");
  const std::string drawn = TurnWaitLine(true).next(wait, 80);
  EXPECT_NE(drawn.find("nvshare: waits 3 s for GPU 0: '"), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("about 12 s left"), std::string::npos) << drawn;
  report.holder = "学習";
  const std::string cut = TurnWaitLine(true).next(turn_wait_of(report, 0), 35);
  EXPECT_NE(cut.find("GPU 0: '学\033"), std::string::npos) << "half a character is none: " << cut;
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
  EXPECT_EQ(own_wait_of(own, is_ours)->text, "a neighbour's turn to end: it needs 160 MiB");
  own.clients.back().waiting_for.clear();
  EXPECT_EQ(own_wait_of(own, is_ours)->text, "its turn");
  add(13, "loading", 1, "");
  EXPECT_FALSE(own_wait_of(own, is_ours)) << "one of its programs has a turn";
}

TEST(TurnWait, ATerminalsLineIsRewrittenAndGoes) {
  TurnWaitLine line(true);
  EXPECT_EQ(line.next(TurnWait{kSecond / 2, "GPU 0"}, 80), "");
  const std::string shown = line.next(TurnWait{2 * kSecond, "GPU 0"}, 80);
  EXPECT_NE(shown.find("nvshare: waits 2 s for GPU 0\033[?7h\0338"), std::string::npos) << shown;
  EXPECT_EQ(shown.find('\n'), std::string::npos);
  EXPECT_EQ(line.next(std::nullopt, 80), "\033[0J");
  EXPECT_EQ(line.next(std::nullopt, 80), "");
}

TEST(TurnWait, ElsewhereEachLongWaitHasOneLine) {
  TurnWaitLine line(false);
  EXPECT_EQ(line.next(TurnWait{4 * kSecond, "GPU 0"}, 80), "");
  EXPECT_EQ(line.next(TurnWait{5 * kSecond, "GPU 0"}, 80), "nvshare: waits for GPU 0\n");
  EXPECT_EQ(line.next(TurnWait{9 * kSecond, "GPU 0"}, 80), "");
  EXPECT_EQ(line.next(TurnWait{6 * kSecond, "GPU 0"}, 80), "nvshare: waits for GPU 0\n");  // another wait
  EXPECT_EQ(line.next(std::nullopt, 80), "");
}

}  // namespace
}  // namespace nvshare::cli
