// A short form of nvshare-simulate: some hundred runs from fixed seeds. NVSHARE_TEST_SEED begins elsewhere, NVSHARE_TEST_SCALE multiplies.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "folder.h"
#include "run.h"
#include "scheduler/log.h"

namespace nvshare::simulation {
namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

TEST(Simulation, NothingIsWrongInAnyRun) {
  scheduler::set_log_level("off");
  const Folder folder;
  simulation::Run::Options options;
  options.folder = folder.path();
#ifdef NVSHARE_SANITIZED
  constexpr uint64_t kRuns = 20;
#else
  constexpr uint64_t kRuns = 150;
#endif
  const uint64_t first = number("NVSHARE_TEST_SEED", 1);
  for (uint64_t seed = first; seed < first + kRuns * number("NVSHARE_TEST_SCALE", 1); ++seed) {
    const Plan plan = draw_plan(seed);
    if (const std::string problem = simulation::Run(plan, options).play(); problem.empty()) continue;
    const Failure failure = shrink(plan, options);
    FAIL() << "NVSHARE_TEST_SEED=" << seed << "\n" << describe(failure.plan) << failure.story << failure.state << failure.problem;
  }
}

TEST(Simulation, TheSameSeedIsTheSameRun) {
  scheduler::set_log_level("off");
  const Folder folder;
  simulation::Run::Options options;
  options.folder = folder.path();
  options.tells = true;
  uint64_t steps = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::string stories[2];
    for (std::string& story : stories) {
      simulation::Run run(draw_plan(seed), options);
      run.play();
      story = run.story();
      steps += run.steps();
    }
    EXPECT_EQ(stories[0], stories[1]);
  }
  EXPECT_GT(steps, 1000U);
}

#ifndef NVSHARE_SANITIZED
// The runs that are drawn today do not meet these often enough, or no check sees them: README.md.
bool is_missed(Canary canary) {
  return canary == Canary::kLoadIgnoresDrop || canary == Canary::kHeadroomNotAskedAnew || canary == Canary::kMovesUntold ||
         canary == Canary::kKeepNeverSent;
}

TEST(Simulation, EveryCanaryIsFound) {
  scheduler::set_log_level("off");
  const Folder folder;
  for (const CanaryName& canary : kCanaries) {
    if (is_missed(canary.canary)) continue;
    simulation::Run::Options options;
    options.folder = folder.path();
    options.canary = canary.canary;
    constexpr uint64_t kMost = 500;
    uint64_t seed = 1;
    std::string problem;
    for (; seed <= kMost && problem.empty(); ++seed) problem = simulation::Run(draw_plan(seed), options).play();
    EXPECT_NE(problem, "") << canary.name << " was not found in " << kMost << " runs";
    std::printf("%-24s run %4llu  %s\n", canary.name, static_cast<unsigned long long>(seed - 1), problem.c_str());
  }
}
#endif

}  // namespace
}  // namespace nvshare::simulation
