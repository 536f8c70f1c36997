#include "fleet/fleet.h"

#include <gtest/gtest.h>

#include <numeric>

namespace nvshare::fleet {
namespace {

Plan small_plan(Way way) {
  Plan plan;
  plan.way = way;
  plan.nodes = 3;
  plan.warm_up = kHour;
  plan.counted = 5 * kHour;
  plan.checks = true;
  return plan;
}

std::vector<Job> jobs_for(const Plan& plan, double load, uint64_t seed) {
  Day day;
  day.gpus = plan.nodes * plan.gpus_per_node;
  day.load = load;
  day.length = plan.warm_up + plan.counted;
  day.seed = seed;
  return make_jobs(day);
}

uint64_t sum(const Outcome& outcome, uint64_t Figures::*what) {
  uint64_t total = 0;
  for (const auto& [kind, figures] : outcome.kinds) total += figures.*what;
  return total;
}

TEST(Fleet, RequestPoliciesAreThoseOfTheDriver) {
  const Rules rules = rules_of(80 * kGiB, 2, false);
  EXPECT_TRUE(rules.shared);
  EXPECT_EQ(rules.memory.value, 160 * kGiB);
  EXPECT_EQ(rules.memory.taken_by(std::nullopt), 160 * kGiB) << "all of it";
  EXPECT_EQ(rules.memory.taken_by(kGiB + 1), kGiB + (1 << 20)) << "up to the next step";
  EXPECT_EQ(rules.memory.taken_by(160 * kGiB + 1), std::nullopt);
  EXPECT_EQ(rules.cores.taken_by(30), 30);
  EXPECT_EQ(rules.cores.taken_by(101), std::nullopt);
  const Rules offset = {true, {100, 100, 10, 100, 30}, {}};
  EXPECT_EQ(offset.memory.taken_by(5), 10) << "at least the least";
  EXPECT_EQ(offset.memory.taken_by(11), 40) << "steps count from the least";
}

TEST(Fleet, TheFirstDevicesThatFit) {
  Offers offers(rules_of(80 * kGiB, 1, false), 2, 2);
  Job job;
  job.memory_asked = 50 * kGiB;
  job.cores_asked = 40;
  EXPECT_EQ(offers.place(job), std::vector<int>{0});
  EXPECT_EQ(offers.place(job), std::vector<int>{1}) << "memory is short on the first";
  job.memory_asked = 20 * kGiB;
  EXPECT_EQ(offers.place(job), std::vector<int>{0});
  EXPECT_EQ(offers.place(job), std::vector<int>{1}) << "compute is short on the first";
  job.gpus = 2;
  EXPECT_EQ(offers.place(job), (std::vector<int>{2, 3})) << "of one node";
  EXPECT_TRUE(offers.holds());
}

TEST(Fleet, NoGpuIsOversubscribedBeyondItsRuleAndEveryJobIsAccountedFor) {
  for (const Way way : {Way::kExclusive, Way::kFractions, Way::kNvshare}) {
    for (const uint64_t seed : {1, 2, 3}) {
      SCOPED_TRACE(std::string(name_of(way)) + ", seed " + std::to_string(seed));
      const Plan plan = small_plan(way);
      const std::vector<Job> jobs = jobs_for(plan, 1.6, seed);
      const Outcome outcome = run_fleet(plan, jobs);
      EXPECT_EQ(outcome.broken, "");
      uint64_t counted = 0;
      for (const Job& job : jobs) counted += job.arrival >= plan.warm_up ? 1 : 0;
      EXPECT_EQ(sum(outcome, &Figures::arrived), counted);
      EXPECT_EQ(sum(outcome, &Figures::started) + sum(outcome, &Figures::waiting_at_end), counted);
      EXPECT_GT(sum(outcome, &Figures::ended), counted / 4);
      EXPECT_GT(outcome.busy_seconds, 0);
      EXPECT_LE(outcome.busy_seconds, outcome.taken_seconds + 1);
      EXPECT_LE(outcome.taken_seconds, outcome.gpu_seconds + 1);
      if (way == Way::kNvshare) {
        EXPECT_GT(outcome.policy.moved_out, 0) << "nothing was swapped: the policy was not asked for anything";
      }
    }
  }
}

// With few jobs each ends: none is lost in a queue, a turn or a swap.
TEST(Fleet, EveryJobEnds) {
  for (const Way way : {Way::kExclusive, Way::kFractions, Way::kNvshare}) {
    Plan plan = small_plan(way);
    plan.nodes = 1;
    plan.warm_up = 0;
    plan.counted = 200 * kHour;
    std::vector<Job> jobs;
    Random random(7);
    for (int i = 0; i < 60; ++i) {
      Job job;
      job.kind = i % 5 == 0 ? Kind::kNotebook : Kind::kBatch;
      job.arrival = i * 30 * kSecond;
      job.gpus = 1;
      job.memory = job.memory_asked = 40 * kGiB;
      job.cores_asked = 25;
      job.seconds = 1200;
      job.seed = random.next();
      jobs.push_back(job);
    }
    const Outcome outcome = run_fleet(plan, jobs);
    EXPECT_EQ(outcome.broken, "") << name_of(way);
    EXPECT_EQ(sum(outcome, &Figures::ended), jobs.size()) << name_of(way);
    EXPECT_EQ(sum(outcome, &Figures::running_at_end), 0u) << name_of(way);
  }
}

TEST(Fleet, TheSameSeedGivesTheSameOutcome) {
  const Plan plan = small_plan(Way::kNvshare);
  const Outcome first = run_fleet(plan, jobs_for(plan, 1.2, 5));
  const Outcome second = run_fleet(plan, jobs_for(plan, 1.2, 5));
  EXPECT_EQ(first.busy_seconds, second.busy_seconds);
  EXPECT_EQ(first.policy.steps, second.policy.steps);
  for (const Kind kind : kKinds) {
    EXPECT_EQ(first.kinds.at(kind).waits, second.kinds.at(kind).waits);
    EXPECT_EQ(first.kinds.at(kind).delays, second.kinds.at(kind).delays);
  }
  const Outcome other = run_fleet(plan, jobs_for(plan, 1.2, 6));
  EXPECT_NE(first.busy_seconds, other.busy_seconds);
}

// A claim that the rules do not allow is noticed: the check can say no.
TEST(Fleet, TheCheckSeesASumThatPassesTheRule) {
  Offers offers(rules_of(80 * kGiB, 1, false), 1, 1);
  Job job;
  job.memory_asked = 60 * kGiB;
  job.cores_asked = 10;
  ASSERT_EQ(offers.place(job).size(), 1u);
  offers.give_back(job, {0});
  offers.give_back(job, {0});
  EXPECT_FALSE(offers.holds());
}

}  // namespace
}  // namespace nvshare::fleet
