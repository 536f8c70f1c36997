// NVML's share of a GPU's time beside what was billed: what is shown, whose it is, and when the log says that they lie apart.
#include "scheduler/gpus/utilization_monitor.h"

#include <gtest/gtest.h>

#include "scheduler/testing/test_amounts.h"

namespace nvshare::scheduler {
namespace {

// A GPU on which processes 10 and 11 are tenant 1, process 20 is tenant 2. What is billed is told in percent of a second.
class UtilizationMonitorTest : public ::testing::Test {
 protected:
  std::vector<UtilizationMonitor::Change> second(std::vector<UseSample::Process> nvml, double billed_one, double billed_two) {
    now_ += kSecond;
    billed_[1] += static_cast<int64_t>(billed_one / 100 * kSecond);
    billed_[2] += static_cast<int64_t>(billed_two / 100 * kSecond);
    return watch_.update({kSecond, std::move(nvml), {}}, {{10, 1}, {11, 1}, {20, 2}}, billed_, now_);
  }
  std::vector<UtilizationMonitor::Change> seconds(int count, const std::vector<UseSample::Process>& nvml, double billed_one,
                                                  double billed_two) {
    std::vector<UtilizationMonitor::Change> changes;
    for (int i = 0; i < count; ++i) {
      for (const UtilizationMonitor::Change& change : second(nvml, billed_one, billed_two)) changes.push_back(change);
    }
    return changes;
  }

  UtilizationMonitor watch_;
  std::map<policy::TenantId, int64_t> billed_{{1, 0}, {2, 7 * kSecond}};
  int64_t now_ = 1000 * kSecond;
};

TEST_F(UtilizationMonitorTest, ATenantsProcessesAreSummedUpAndOthersAreNobodys) {
  EXPECT_EQ(watch_.span(), 0);
  EXPECT_FALSE(watch_.of_tenant(1));
  second({{10, 90}}, 0, 0);  // what was billed before the first look is not compared
  EXPECT_EQ(watch_.span(), 0);
  seconds(4, {{10, 20}, {11, 11}, {20, 55}, {99, 6}}, 30, 60);
  EXPECT_EQ(watch_.span(), 4 * kSecond);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->nvml, 31);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->billed, 30);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(2)->nvml, 55);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(2)->billed, 60);
  EXPECT_DOUBLE_EQ(watch_.of_others().nvml, 6);
  EXPECT_FALSE(watch_.of_tenant(3));

  // Only the latest ten seconds are shown; a process that is not listed used nothing.
  seconds(10, {{20, 100}}, 0, 100);
  EXPECT_EQ(watch_.span(), 10 * kSecond);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->nvml, 0);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(2)->nvml, 100);
  EXPECT_DOUBLE_EQ(watch_.of_others().nvml, 0);
}

TEST_F(UtilizationMonitorTest, SamplesCountByTheTimeThatTheyCover) {
  second({}, 0, 0);
  now_ += 3 * kSecond;
  billed_[1] += 3 * kSecond / 2;
  watch_.update({3 * kSecond, {{10, 40}}, {}}, {{10, 1}}, billed_, now_);
  second({{10, 80}}, 50, 0);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->nvml, 50);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->billed, 50);
}

TEST_F(UtilizationMonitorTest, AProcessThatHasEndedSinceIsStillItsTenants) {
  second({}, 0, 0);
  second({{10, 40}}, 40, 0);
  now_ += kSecond;
  watch_.update({kSecond, {{10, 40}}, {}}, {}, billed_, now_);
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->nvml, 40);
  EXPECT_DOUBLE_EQ(watch_.of_others().nvml, 0);
  // The second time nobody knows it.
  now_ += kSecond;
  watch_.update({kSecond, {{10, 60}}, {}}, {}, billed_, now_);
  EXPECT_DOUBLE_EQ(watch_.of_others().nvml, 20);
}

TEST_F(UtilizationMonitorTest, AnAccountThatIsOpenedAnewBeginsAtNothing) {
  second({}, 0, 0);
  seconds(2, {}, 0, 50);
  billed_.erase(2);
  seconds(1, {}, 0, 50);  // opened again
  EXPECT_NEAR(watch_.of_tenant(2)->billed, 50, 1e-9);
  // Or at what an earlier scheduler had on it.
  billed_[3] = 90 * kSecond;
  second({}, 0, 50);
  EXPECT_EQ(watch_.of_tenant(3)->billed, 0);
}

TEST_F(UtilizationMonitorTest, TheLogSaysOnceWhenTheyLieFarApartForLongAndWhenNoMore) {
  EXPECT_TRUE(seconds(100, {{10, 44}, {20, 50}}, 30, 40).empty()) << "within the bound";
  EXPECT_FALSE(watch_.of_tenant(1)->differ);
  // Not before it has lasted: the window must be full of it, and then kPatience.
  EXPECT_TRUE(seconds(30, {{10, 60}, {20, 40}}, 30, 40).empty());
  const auto changes = seconds(15, {{10, 60}, {20, 40}}, 30, 40);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].tenant, 1u);
  EXPECT_TRUE(changes[0].shares.differ);
  EXPECT_DOUBLE_EQ(changes[0].shares.nvml, 60);
  EXPECT_DOUBLE_EQ(changes[0].shares.billed, 30);
  EXPECT_TRUE(watch_.of_tenant(1)->differ);
  EXPECT_FALSE(watch_.of_tenant(2)->differ);
  EXPECT_TRUE(seconds(200, {{10, 60}, {20, 40}}, 30, 40).empty()) << "said once";

  const auto over = seconds(20, {{10, 30}, {20, 40}}, 30, 40);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_FALSE(over[0].shares.differ);
  EXPECT_FALSE(watch_.of_tenant(1)->differ);
}

TEST_F(UtilizationMonitorTest, AShortDifferenceIsBorneAndTooLittleCountsLikeTooMuch) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(seconds(20, {{10, 90}}, 30, 0).empty());
    EXPECT_TRUE(seconds(20, {{10, 30}}, 30, 0).empty());
  }
  const auto changes = seconds(60, {{10, 5}}, 30, 0);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_LT(changes[0].shares.nvml, changes[0].shares.billed);
}

TEST_F(UtilizationMonitorTest, ProgramsThatAreNoClientsAreTold) {
  const auto changes = seconds(60, {{10, 30}, {98, 10}, {99, 10}}, 30, 0);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_FALSE(changes[0].tenant);
  EXPECT_DOUBLE_EQ(changes[0].shares.nvml, 20);
}

TEST_F(UtilizationMonitorTest, WhereNvmlCannotTellNothingIsShown) {
  seconds(20, {{10, 30}}, 30, 0);
  EXPECT_TRUE(watch_.update({0, {}, "NVML cannot tell"}, {{10, 1}}, billed_, now_).empty());
  EXPECT_EQ(watch_.unknown(), "NVML cannot tell");
  EXPECT_EQ(watch_.span(), 0);
  EXPECT_FALSE(watch_.of_tenant(1));
  seconds(3, {{10, 30}}, 30, 0);  // and then it can
  EXPECT_EQ(watch_.unknown(), "");
  EXPECT_DOUBLE_EQ(watch_.of_tenant(1)->nvml, 30);
}

}  // namespace
}  // namespace nvshare::scheduler
