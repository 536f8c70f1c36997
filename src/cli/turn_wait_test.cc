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
  EXPECT_EQ(wait->text, "waits for its turn on GPU 0: 'train' has it, running for 8 s, about 12 s yet");
  EXPECT_FALSE(turn_wait_of({}, 0));
}

TEST(TurnWait, BetweenTwoQuestionsTimeGoesOn) {
  auto wait = turn_wait_of(train_runs(), 2 * kSecond);
  EXPECT_EQ(wait->waited_ns, 5 * kSecond);
  EXPECT_EQ(wait->text, "waits for its turn on GPU 0: 'train' has it, running for 10 s, about 10 s yet");
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
