#include <gtest/gtest.h>

#include "cli/demo/plan.h"
#include "cli/demo/progress_view.h"
#include "cli/demo/report.h"
#include "cli/demo/runner.h"

namespace nvshare::cli::demo {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;

JobState finished(const char* checksum, double wall_s, double busy_s) {
  JobState job;
  job.ended = true;
  job.exit_code = 0;
  job.done = 1;
  job.checksum = checksum;
  job.wall_s = wall_s;
  job.busy_s = busy_s;
  return job;
}

Outcome good() {
  Outcome outcome;
  outcome.gpu = {true, "Stand-in", 512 * kMiB};
  outcome.plan = make_plan(outcome.gpu, 8 * kGiB, 2);
  outcome.solo = {finished("aa", 10, 9.5), finished("bb", 10, 9.8)};
  outcome.shared.jobs = {finished("aa", 20, 9), finished("bb", 21, 9)};
  outcome.shared.wall_s = 21;
  outcome.switches = 13;
  return outcome;
}

TEST(DemoPlan, AJobTakesThreeQuartersOfTheGpu) {
  const Plan plan = make_plan({true, "Stand-in", 512 * kMiB}, 8 * kGiB, 4);
  EXPECT_EQ(plan.gpu_bytes, 512 * kMiB);
  EXPECT_EQ(plan.job_bytes, 384 * kMiB);
  EXPECT_EQ(plan.block_bytes * 24, plan.job_bytes);
  EXPECT_FALSE(plan.configured);
  EXPECT_GT(plan.paging_limit_s, 0);
}

TEST(DemoPlan, ARealGpuCountsAsNoMoreThanTheHostCanHold) {
  const Plan plan = make_plan({false, "Big", 140 * kGiB}, 16 * kGiB, 4);
  EXPECT_TRUE(plan.configured);
  EXPECT_LE(plan.job_bytes * 4, 16 * kGiB);
  EXPECT_NEAR(static_cast<double>(plan.job_bytes) / static_cast<double>(plan.gpu_bytes), 0.75, 0.02);
  EXPECT_EQ(plan.paging_limit_s, 0);
  // Four turns a job, and done within three minutes: alone one after the other, then all together.
  const double job_s = static_cast<double>(plan.steps * plan.compute_us * 24) / 1e6;
  EXPECT_GT(job_s, 3 * plan.switch_time_s);
  EXPECT_LT(2.2 * 4 * job_s, 170);
}

TEST(DemoReport, HoldsWhenAllIsAsPromised) {
  const Outcome outcome = good();
  EXPECT_TRUE(outcome.all_correct());
  EXPECT_DOUBLE_EQ(outcome.sequential_s(), 20);
  EXPECT_DOUBLE_EQ(outcome.ratio(), 1.05);
  EXPECT_TRUE(failures_of(outcome).empty()) << failures_of(outcome).front();
}

TEST(DemoReport, EachPromiseIsChecked) {
  Outcome wrong = good();
  wrong.shared.jobs[1].checksum = "cc";
  EXPECT_FALSE(wrong.all_correct());
  ASSERT_EQ(failures_of(wrong).size(), 1u);
  EXPECT_NE(failures_of(wrong)[0].find("job 2"), std::string::npos);

  Outcome died = good();
  died.shared.jobs[0].exit_code = 3;
  died.shared.jobs[0].last_words = "cuMemAlloc returned 2";
  ASSERT_EQ(failures_of(died).size(), 1u);
  EXPECT_NE(failures_of(died)[0].find("cuMemAlloc returned 2"), std::string::npos);

  Outcome slow = good();
  slow.shared.wall_s = 22.1;
  ASSERT_EQ(failures_of(slow).size(), 1u);
  slow.processors = 2;
  slow.load_average = 3;
  EXPECT_EQ(failures_of(slow)[0].find("idle"), std::string::npos) << "its own jobs";
  slow.load_average = 12;
  EXPECT_NE(failures_of(slow)[0].find("12 programs wanted the machine's 2 processors meanwhile"), std::string::npos);

  Outcome few = good();
  few.switches = 11;
  EXPECT_EQ(failures_of(few).size(), 1u);

  Outcome idle = good();
  idle.solo[0].busy_s = 8.9;
  EXPECT_EQ(failures_of(idle).size(), 1u);

  EXPECT_FALSE(failures_of(Outcome{}).empty());
}

TEST(DemoReport, JsonBeginsWithTheAgreedKeys) {
  EXPECT_EQ(json_of(good()).rfind(R"({"jobs":2,"all_correct":true,"makespan_s":21.0,"sequential_s":20.0,"ratio":1.05,"switches":13,)", 0),
            0u)
      << json_of(good());
}

TEST(DemoReport, PagingThatWasCutOffIsShownAsMoreThan) {
  Outcome outcome = good();
  PhaseResult paging;
  paging.cut_off = true;
  paging.wall_s = 60;
  paging.jobs.resize(2);
  paging.jobs[0].done = 0.5;
  outcome.paging = paging;
  const std::string table = draw_outcome(outcome);
  EXPECT_NE(table.find("> 60.0 s"), std::string::npos) << table;
  EXPECT_NE(table.find("25 % done"), std::string::npos) << table;
  EXPECT_TRUE(failures_of(outcome).empty());  // being cut off is the expected end
}

TEST(DemoRunner, ReportsAreTakenAndOtherLinesKept) {
  JobState state;
  take_report(R"({"event":"gpu","name":"Test","total":1024})", state);
  take_report(R"({"event":"progress","done":0.25})", state);
  EXPECT_EQ(state.gpu_name, "Test");
  EXPECT_EQ(state.gpu_bytes, 1024u);
  EXPECT_DOUBLE_EQ(state.done, 0.25);
  take_report("cuMemAlloc returned 2", state);
  take_report(R"({"event":7})", state);
  EXPECT_EQ(state.last_words, R"({"event":7})");
  take_report(R"({"event":"result","checksum":"0f","busy_s":1.5})", state);
  EXPECT_EQ(state.checksum, "0f");
  EXPECT_DOUBLE_EQ(state.busy_s, 1.5);
}

TEST(DemoRunner, WaitsForAllAndTellsTheirEnds) {
  const Environment environment = current_environment();
  const char* result = R"(echo '{"event":"result","checksum":"ab","busy_s":1}')";
  int observed = 0;
  auto phase = run_jobs({{{"/bin/sh", "-c", result}, environment}, {{"/bin/sh", "-c", "echo oops >&2; exit 3"}, environment}}, 0,
                        [&](const std::vector<JobState>&, double) { ++observed; });
  ASSERT_TRUE(phase);
  EXPECT_TRUE(phase->jobs[0].succeeded());
  EXPECT_EQ(phase->jobs[1].exit_code, 3);
  EXPECT_EQ(phase->jobs[1].last_words, "oops");
  EXPECT_FALSE(phase->cut_off);
  EXPECT_GE(observed, 1);
}

TEST(DemoRunner, TheLimitCutsOff) {
  auto phase = run_jobs({{{"/bin/sh", "-c", "exec sleep 600"}, current_environment()}}, 0.3, [](const std::vector<JobState>&, double) {});
  ASSERT_TRUE(phase);
  EXPECT_TRUE(phase->cut_off);
  EXPECT_FALSE(phase->jobs[0].succeeded());
}

TEST(DemoProgress, Bars) {
  EXPECT_EQ(bar(0, 10), "[..........]   0 %");
  EXPECT_EQ(bar(0.52, 10), "[#####.....]  52 %");
  EXPECT_EQ(bar(1, 10), "[##########] 100 %");
  EXPECT_EQ(bar(7, 4), "[####] 100 %");
}

}  // namespace
}  // namespace nvshare::cli::demo
